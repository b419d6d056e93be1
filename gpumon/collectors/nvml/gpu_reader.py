"""Read one GPU. Its metrics are in tiers: FAST, SLOW, RARE and ONCE, which are read at different intervals.

An error of one metric does not affect the other metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpumon.clock import boot_clock
from gpumon.collectors.nvml.device import Device, GpuFaultError
from gpumon.collectors.nvml.gpm import Monitoring
from gpumon.collectors.nvml.library import UNKNOWN, Library, NvmlError
from gpumon.collectors.nvml.link_reader import LinkReader, NvlinkReader, PeerReader, TrafficReader
from gpumon.collectors.nvml.mig import Instances
from gpumon.collectors.nvml.peer_access import Access
from gpumon.collectors.nvml.table_reader import NO_PROCESS_NAMES, ProcessNames, TableReader, rows_of
from gpumon.model.fabric import Fabric, Platform
from gpumon.model.gpu import Gpu
from gpumon.model.nvlink import C2cLink, NvlinkPeer
from gpumon.model.reading import FAST, RARE, SLOW, Call, Gpm, Tier

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
        self._gpu = TableReader(
            Gpu, self.device, gpm=self._monitoring.value, processes=extent.processes, detailed=extent.detailed
        )
        self._fabric = TableReader(Fabric, self.device)
        self._platform = TableReader(Platform, self.device)
        self._nvlinks = NvlinkReader(self.device)
        self._c2c_links = LinkReader(C2cLink, self.device)
        self._traffic = TrafficReader(self.device)
        self._peers = PeerReader(self.device)
        self._new_peers: Mapping[str, NvlinkPeer] = {}
        self.peer_access: Access = {}
        """Peer access status that was not returned by `readings` yet, by UUID of the other GPU and by capability."""
        self._instances = Instances(self.device, gpm=extent.gpm)
        self.watching = False
        """If True, the number of processes is read with FAST, and the bytes moved by each NVLink with SLOW."""
        self._mig: bool | None = None
        self._parted: bool | None = None
        self._guest = False
        self._slow_at: float | None = None

    def read(self, tier: Tier) -> Iterator[None]:
        """Read the metrics of a tier. Yield after every few driver calls, so that other GPUs can be read in between.

        Call `Device.turn_to` before a reading continues after one of another tier. Raise GpuFaultError if the whole
        GPU fails.
        """
        self.device.begin(tier)
        tables, links = (self._gpu, self._fabric, self._platform), (self._nvlinks, self._c2c_links)
        if tier is FAST and self._extent.gpm:
            self._monitoring.read()
            yield
        closely = self.watching and tier is SLOW
        self._gpu.reads_graphics |= self.watching
        traffic = self._traffic.fields(self._nvlinks.count) if closely else ()
        self.device.ask_fields((*(field for reader in (*tables, *links) for field in reader.fields(tier)), *traffic))
        yield
        answered = False
        for table in tables:
            answered |= yield from table.read(tier, but=PROCESSES if closely else "")
        if tier is FAST and self.watching:
            self._gpu.read_row(PROCESSES)
            yield
        for reader in links:
            reader.read(tier)
        if closely:
            self._traffic.read(self._nvlinks.count)
        if tier is FAST:
            self._after_fast(answered=answered)
        elif tier is SLOW:
            yield from self._after_slow()
        else:
            self._gpu.links = self._nvlinks.count
            self._nvlinks.stop_unsupported()
            self._gpu.reads_graphics = True
        if tier is RARE:
            yield from self._read_peers()
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
        if mode is not None and bool(mode) != self._mig:
            self._change_mode(on=bool(mode))
        if self._mig:
            yield from self._read_instances()
        self._guest = self.device.constant(VIRTUALIZATION, otherwise=0) in GUESTS
        self._nvlinks.judge(mig=bool(self._mig))

    def _change_mode(self, *, on: bool) -> None:
        """Store the MIG mode (`on`: enabled). If it changed, free GPM samples and forget what the GPU supports."""
        if self._mig is not None:
            self.device.forget()
            self.device.missed.add(RARE)
            self.close()
        self._mig, self._parted = on, None

    def _read_instances(self) -> Iterator[None]:
        """Read the MIG instances.

        If the first instance was created or the last one deleted since the last reading, determine again what the GPU
        supports.
        """
        yield from self._instances.read()
        parted = bool(self._instances.readings)
        if self._parted not in {None, parted}:
            self.device.forget()
            self.device.missed.add(RARE)
        self._parted = parted

    def _read_peers(self) -> Iterator[None]:
        if (yield from self._peers.read(self._nvlinks.count)):
            self._new_peers = self._peers.peers

    def readings(self) -> dict[str, Any]:
        """Return the GPU's last values as keyword arguments of GpuReading. NodePoll adds the remaining arguments.

        NVLink peers and peer access are included only in the first call after new ones were read.
        """
        peers, self._new_peers = self._new_peers, {}
        access, self.peer_access = self.peer_access, {}
        return {
            "gpu": Gpu(**self._gpu.values),
            "guest": self._guest or None,
            "links": self._nvlinks.links,
            "peers": peers,
            "peer_access": access,
            "c2c_links": self._c2c_links.links,
            "fabric": self._fabric.reading(),
            "platform": self._platform.reading(),
            "migs": self._instances.readings,
            "pids": self._gpu.pids if PROCESSES in self._gpu.values else None,
            "pids_at": self._gpu.pids_at,
            "slow_at": self._slow_at,
            "link_bytes": self._traffic.moved if self.watching else {},
        }

    def increments(self, seconds: float) -> Mapping[str, Any]:
        """Return how much counters grow in this number of seconds, by metric name.

        Only counters that are integrated over time from the last value of another metric are included.
        """
        return self._gpu.increments(seconds)

    def close(self) -> None:
        """Free the GPM samples of the GPU and of its MIG instances, and discard the readings of the MIG instances."""
        self._monitoring.close()
        self._instances.close()
