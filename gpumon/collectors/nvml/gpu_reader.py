"""Read one GPU, for a limited time in each poll. Its metrics are in tiers: FAST, SLOW, RARE and ONCE, with intervals.

The part of a poll that reads one GPU is called a turn. A fast GPU is read completely in one turn, a slow GPU in several
turns, in as many polls. An error of one metric does not affect the other metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpumon.clock import boot_clock
from gpumon.collectors.nvml.device import Device, GpuFaultError
from gpumon.collectors.nvml.gpm import Monitoring
from gpumon.collectors.nvml.library import UNKNOWN, Library, NvmlError
from gpumon.collectors.nvml.link_reader import Access, LinkReader, NvlinkReader, PeerReader
from gpumon.collectors.nvml.mig import Instances
from gpumon.collectors.nvml.table_reader import NO_PROCESS_NAMES, ProcessNames, TableReader, rows_of
from gpumon.model.gpu import Gpu
from gpumon.model.nvlink import C2cLink, Fabric, NvlinkPeer, Platform
from gpumon.model.reading import FAST, ONCE, RARE, SLOW, Call, Gpm, Tier, rows
from gpumon.model.snapshot import GpuReading

VIRTUALIZATION = Call("VirtualizationMode")
PROCESSES = "processes"
"""Name of the metric in model.gpu.Gpu that is the number of processes on the GPU."""
GUESTS = frozenset({1, 2})
"""NVML's virtualization modes of a GPU in a virtual machine: passed through whole (1), or a vGPU (2)."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Optional metrics to read, as configured: GPM metrics, detailed metrics, and metrics that name processes."""

    gpm: bool = True
    detailed: bool = True
    processes: ProcessNames = NO_PROCESS_NAMES


EVERYTHING = Extent()


class GpuReader:
    """Reads one opened GPU through NVML, and keeps the last value of each of its metrics."""

    def __init__(
        self, library: Library, handle: Any, bus_id: str, field_ids: Mapping[str, int], extent: Extent = EVERYTHING
    ) -> None:
        self.device = Device(library, handle, bus_id, field_ids)
        self._extent = extent
        self._monitoring = Monitoring(self.device)
        self._gpu = TableReader(Gpu, self.device, gpm=self._monitoring.value, processes=extent.processes)
        self._fabric = TableReader(Fabric, self.device)
        self._platform = TableReader(Platform, self.device)
        self._nvlinks = NvlinkReader(self.device)
        self._c2c_links = LinkReader(C2cLink, self.device)
        self._peers = PeerReader(self.device)
        self._new_peers: Mapping[str, NvlinkPeer] = {}
        self.peer_access: Access = {}
        """Peer access status that was not returned by `reading` yet, by UUID of the other GPU and by capability."""
        self._instances = Instances(self.device, gpm=extent.gpm)
        self.watching = False
        """If True, the number of processes is read with FAST, and the bytes moved by each NVLink with SLOW."""
        self._mig: bool | None = None
        self._parted: bool | None = None
        self._guest = False
        self._slow_at: float | None = None
        self._read_at: float | None = None

    def read(self, tier: Tier) -> Iterator[None]:
        """Read the metrics of a tier. Yield after every few driver calls, so that other GPUs can be read in between.

        Call `Device.turn_to` before a reading continues after one of another tier. Raise GpuFaultError if the whole
        GPU fails.
        """
        self.device.begin(tier)
        tables, links = (self._gpu, self._fabric, self._platform), (self._nvlinks, self._c2c_links)
        due = {reader: rows_of(reader.table, tier, detailed=self._extent.detailed) for reader in tables}
        if tier is FAST and self._extent.gpm:
            self._monitoring.read()
            yield
        closely = self.watching and tier is SLOW
        if closely:  # the processes are read with FAST
            due[self._gpu] = {name: row for name, row in due[self._gpu].items() if name != PROCESSES}
        self._gpu.reads_graphics |= self.watching
        fields = [field for reader, metrics in due.items() for field in reader.fields(metrics)]
        fields += [field for reader in links for field in reader.fields(tier)]
        self.device.ask_fields((*fields, *self._nvlinks.traffic_fields()) if closely else fields)
        yield
        answered = False
        for reader, metrics in due.items():
            answered |= yield from reader.read(metrics)
        if tier is FAST and self.watching:
            yield from self._gpu.read({PROCESSES: rows(Gpu)[PROCESSES]})
        for link_reader in links:
            link_reader.read(tier)
        if closely:
            self._nvlinks.read_traffic()
        if tier is FAST:
            self._after_fast(answered=answered)
        elif tier is SLOW:
            yield from self._after_slow()
        else:
            self._gpu.links = self._nvlinks.count
            self._nvlinks.stop_unsupported()
            self._gpu.reads_graphics = True
        if tier is RARE and (yield from self._peers.read(self._nvlinks.count)):
            self._new_peers = self._peers.peers
        self.device.end()

    def _after_fast(self, *, answered: bool) -> None:
        if not answered:
            raise GpuFaultError("unknown", NvmlError(UNKNOWN, "every call of the poll"))
        if self._monitoring.is_silent(*map(self._gpu.values.get, ("utilization_ratio", "processes"))):
            for name, row in rows_of(Gpu, FAST).items():
                if isinstance(row.source, Gpm):
                    self._gpu.values.pop(name, None)

    def _after_slow(self) -> Iterator[None]:
        self._slow_at = boot_clock()
        mode = self._gpu.values.get("mig_mode")
        changed = False
        if mode is not None and bool(mode) != self._mig:
            if self._mig is not None:
                changed = True
                self.close()
            self._mig, self._parted = bool(mode), None
        if self._mig:
            yield from self._instances.read()
            parted = bool(self._instances.readings)
            changed |= self._parted not in {None, parted}
            self._parted = parted
        if changed:  # with another MIG mode, or with the first or without the last instance, it supports other calls
            self.device.forget()
            self.device.missed.add(RARE)
        self._guest = self.device.constant(VIRTUALIZATION, otherwise=0) in GUESTS
        self._nvlinks.judge(mig=bool(self._mig))

    def reading(self, uuid: str | None, index: int | None, max_gap: float) -> GpuReading:
        """Return the GPU's last values, and how much counters that are integrated over time have grown.

        No time is integrated before the first reading and over a pause of more than `max_gap` seconds. NVLink peers and
        peer access are included only once after new ones were read.
        """
        now = boot_clock()
        watched = now - self._read_at if self._read_at is not None and now - self._read_at <= max_gap else 0.0
        self._read_at = now
        peers, self._new_peers = self._new_peers, {}
        access, self.peer_access = self.peer_access, {}
        return GpuReading(
            bus_id=self.device.bus_id,
            uuid=uuid,
            index=index,
            watched=watched,
            increments=self._gpu.increments(watched),
            gpu=Gpu(**self._gpu.values),
            guest=self._guest or None,
            links=self._nvlinks.links,
            peers=peers,
            peer_access=access,
            c2c_links=self._c2c_links.links,
            fabric=Fabric(**self._fabric.values) if self._fabric.values else None,
            platform=Platform(**self._platform.values) if self._platform.values else None,
            migs=self._instances.readings,
            pids=self._gpu.pids if PROCESSES in self._gpu.values else None,
            pids_at=self._gpu.pids_at,
            slow_at=self._slow_at,
            link_bytes=self._nvlinks.moved if self.watching else {},
        )

    def close(self) -> None:
        """Free the GPM samples of the GPU and of its MIG instances, and discard the readings of the MIG instances."""
        self._monitoring.close()
        self._instances.close()


SLOW_SECONDS = 0.5
"""Seconds after which a reading is interrupted, and continued in a later poll, so that other GPUs do not wait."""
FAST_TURNS = 2.5
"""Factor by which the fast tier may take longer: a GPU is reported only when its fast tier is complete."""
CALL_SECONDS = 1e-3
"""A turn is interrupted only after a step (the driver calls between two yields) that took more than these seconds."""
ASLEEP_SECONDS = 5.0
"""Max seconds of a step that counts as part of its turn. In a longer one, host or child was suspended."""
ALL_TIERS = (SLOW, RARE, FAST, ONCE)
"""Tiers that are due for a GPU that was just opened. They are sorted by LAST and read from the end: first ONCE, then
FAST, RARE and SLOW. SLOW comes last because it needs the number of links, which ONCE and RARE read.
"""
LAST = {FAST: 1, ONCE: 2}
"""Sort key of a tier in the list of due tiers. The highest key is read first. Other tiers have the key 0."""


class Tally:
    """Totals of one poll over all GPUs: seconds by tier, number of errors, and queries that the driver denied."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self.durations: dict[Tier, float] = dict.fromkeys(tiers, 0.0)
        self.errors: Counter[str] = Counter()
        self.denied: set[str] = set()
        self.opened_slowly = False
        """True if opening a GPU took long in this poll. The poll then opens no further GPU."""


class Turns:
    """Reads one opened GPU for a limited time in each poll, and remembers where an interrupted reading continues.

    `patience`: seconds after which a reading is interrupted; FAST_TURNS times as many for the fast tier. After an
    interruption the GPU is not read for as long as the turn lasted, but at most `gap` seconds.
    """

    def __init__(self, reader: GpuReader, patience: float, gap: float) -> None:
        self.reader = reader
        self.rest_until = 0.0
        self._patience = patience
        self._gap = gap
        self._todo: list[Tier] = list(ALL_TIERS)
        """Tiers that are due. The last tier in the list is read next."""
        self._begun: dict[Tier, Iterator[None]] = {}
        """The generator of each tier whose reading was interrupted."""

    def hurry(self) -> None:
        """Make the slow tier due at once, and forget what the GPU supports, because the driver reported a change."""
        self.rest_until = 0.0
        self._add(SLOW)
        self.reader.device.forget()

    def take(self, tally: Tally) -> bool:
        """Read the tiers that are due until all are complete or the turn is over, and add to the totals in `tally`.

        Return True if the fast tier was completed. Only then is the GPU reported in this poll. Raise GpuFaultError if
        the whole GPU fails.
        """
        device, completed = self.reader.device, False
        self._add(*tally.durations)
        if SLOW in tally.durations:
            self._add(*device.missed & {ONCE, RARE})
        self._todo.sort(key=lambda tier: LAST.get(tier, 0))
        began, ended = boot_clock(), True
        try:
            while self._todo and ended:
                tier, started = self._todo.pop(), boot_clock()
                ended = self._advance(tier, began)
                completed |= ended and tier is FAST
                counted = tier if tier in tally.durations else FAST
                tally.durations[counted] += boot_clock() - started
        finally:
            tally.errors.update(device.errors)
            tally.denied.update(device.denied)
            device.errors.clear()
        return completed

    def _add(self, *tiers: Tier) -> None:
        self._todo[:0] = [tier for tier in tiers if tier not in self._todo]

    def _advance(self, tier: Tier, began: float) -> bool:
        """Begin or continue to read a tier, until the tier is complete or the turn, which started at `began`, is over.

        Return True if the tier was completed.
        """
        steps = self._begun.pop(tier, None)
        if steps is None:
            steps = self.reader.read(tier)
        else:
            self.reader.device.turn_to(tier)
        max_seconds = self._patience * (FAST_TURNS if tier is FAST else 1)
        stepped = boot_clock()
        for _ in steps:
            before, stepped = stepped, boot_clock()
            step = stepped - before
            if step > ASLEEP_SECONDS:
                began += step
            took = stepped - began
            if took > max_seconds and step > CALL_SECONDS:
                self.rest_until = stepped + min(took, self._gap)
                self._begun[tier] = steps
                self._add(tier)
                return False
        return True
