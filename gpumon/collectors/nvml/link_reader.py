"""Read the NVLinks and C2C links of a GPU, and which pairs of GPUs can access each other's memory.

The fields of links are normally read with the same driver call as the fields of the GPU itself.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, ClassVar, Protocol

from gpumon.clock import boot_clock
from gpumon.collectors.nvml.device import AbsentError, Device
from gpumon.collectors.nvml.fields import NONSENSE, Scoped
from gpumon.collectors.nvml.library import UNSUPPORTED, NvmlError
from gpumon.collectors.nvml.table_reader import decode_error_rate, rows_of, scale_value, words
from gpumon.model import bus_id
from gpumon.model.nvlink import Nvlink, NvlinkPeer
from gpumon.model.reading import ONCE, RARE, SLOW, Call, Each, Field, LinkCall, LinkField, Source, Table, Tier, rows

TRAFFIC = (
    {"NVLINK_THROUGHPUT_DATA_RX": 1024, "NVLINK_COUNT_RCV_BYTES": 1},
    {"NVLINK_THROUGHPUT_DATA_TX": 1024, "NVLINK_COUNT_XMIT_BYTES": 1},
)
"""Fields that count the payload bytes of a link, each with its unit in bytes: first those for received, then those for
transmitted bytes. In each direction, GPUs up to Hopper support the first field, later GPUs the second.
"""


class LinkTable(Table, Protocol):
    """A metric table with one instance for each link of a GPU. COUNT is the field with the number of links."""

    COUNT: ClassVar[Field]


class LinkReader:
    """Reads the metrics of a GPU's NVLinks, or of its C2C links. `links` has the last values, by link number.

    `table`: Nvlink or C2cLink. The values of a link are an instance of it. `count`: number of links.
    """

    def __init__(self, table: type[LinkTable], device: Device) -> None:
        self._table = table
        self._device = device
        self.count = 0
        self.links: dict[str, Any] = {}
        self._values: dict[int, dict[str, Any]] = {}
        """Last values of all tiers, by link number and metric."""

    def fields(self, tier: Tier) -> Iterator[Scoped]:
        """Yield the fields of this tier for each link and, in ONCE and RARE, the field with the number of links."""
        if tier in {ONCE, RARE}:
            yield Scoped(self._table.COUNT.name)
        for row in rows_of(self._table, tier).values():
            for field in _fields(row.source):
                yield from (Scoped(field.name, link, link=True) for link in range(self.count))

    def read(self, tier: Tier) -> None:
        """Set `count` (in ONCE and RARE, if it can be read) and `links` (in SLOW) from the device's cached fields."""
        if tier in {ONCE, RARE}:
            count = self._device.value(Scoped(self._table.COUNT.name))
            if count is not None and count != NONSENSE:
                self.count = int(count)
        due = rows_of(self._table, tier)
        for link in range(self.count) if due else ():
            values = self._values.setdefault(link, {})
            for name, row in due.items():
                value = self._value(row.source, link)
                values[name] = None if value is None else self._device.plausibility.plausible(tier, name, value)
        if tier is SLOW:
            self.links = {str(link): self._table(**self._values[link]) for link in range(self.count)}

    def _value(self, source: Source, link: int) -> Any:
        if isinstance(source, Each):
            values = {key: self._value(inner, link) for key, inner in source.sources.items()}
            return {key: value for key, value in values.items() if value is not None} or None
        if not isinstance(source, LinkField):
            return None
        value = self._device.value(Scoped(source.name, link, link=True))
        if value is None:
            return None
        if source.states is not None:
            return float(value in source.states)
        return decode_error_rate(value) if source.packed else scale_value(value, source.scale)

    def stop_reading(self, link: int) -> None:
        """Stop reading from all links of the GPU the fields that this link, which is up, does not support."""
        for row in rows(self._table).values():
            for field in _fields(row.source):
                try:
                    self._device.field(Scoped(field.name, link, link=True))
                except AbsentError:
                    continue
                except NvmlError as error:
                    if error.code in UNSUPPORTED:
                        self._device.stop_reading(field.name)


def _fields(source: Source) -> Iterator[LinkField]:
    if isinstance(source, LinkField):
        yield source
    elif isinstance(source, Each):
        for inner in source.sources.values():
            yield from _fields(inner)


class NvlinkReader(LinkReader):
    """Reads the NVLinks of a GPU. Whether a link that is down should be up is decided in health/products.py."""

    def __init__(self, device: Device) -> None:
        super().__init__(Nvlink, device)
        self.moved: dict[str, float] = {}
        """Sum of the counters of received and transmitted payload bytes of each link, by link number."""

    def judge(self, *, mig: bool) -> None:
        """Stop reading unsupported fields. If MIG is enabled, set the state of all links to None: none is used then."""
        self.stop_unsupported()
        if mig:
            self.links = {link: replace(state, up=None) for link, state in self.links.items()}

    def stop_unsupported(self) -> None:
        """Determine from a link that is up which fields of the current tier the links of this GPU support."""
        up = [link for link, state in self.links.items() if state.up]
        if up:
            self.stop_reading(int(min(up)))

    def traffic_fields(self) -> Iterator[Scoped]:
        """Yield the fields that `read_traffic` needs. They are many, so they are read only on request."""
        for way in TRAFFIC:
            yield from (Scoped(name, link, link=True) for name in way for link in range(self.count))

    def read_traffic(self) -> None:
        """Set `moved`, without links of which not both counters, received and transmitted, can be read.

        The fields in TRAFFIC must already be in the device's cache. Those that no link has are not read again.
        """
        self.moved = {}
        for link in range(self.count):
            totals = []
            for way in TRAFFIC:
                values = ((self._device.value(Scoped(name, link, link=True)), scale) for name, scale in way.items())
                totals += [value * scale for value, scale in values if value is not None and value != NONSENSE][:1]
            if len(totals) == len(TRAFFIC):
                self.moved[str(link)] = sum(totals)
        if self.moved:
            for name in (name for way in TRAFFIC for name in way):
                self._device.stop_reading(name)


class PeerReader:
    """Reads to which devices the NVLinks of a GPU lead. The driver reports no peer of a link that is down."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.peers: dict[str, NvlinkPeer] = {}

    def read(self, links: int) -> Generator[None, None, bool]:
        """Read the unknown peers of links 0 to `links` - 1; yield after each link. Return True if a peer was added."""
        peers: dict[str, NvlinkPeer] = {}
        for link in range(links):
            if str(link) not in self.peers and (peer := self._peer(link)) is not None:
                peers[str(link)] = peer
            yield
        self.peers = self.peers | peers
        return bool(peers)

    def _peer(self, link: int) -> NvlinkPeer | None:
        values: dict[str, str | None] = {}
        sources = {name: row.source for name, row in rows(NvlinkPeer).items() if isinstance(row.source, LinkCall)}
        for name, source in sources.items():
            try:
                value = self._device.call(Call(source.name, (link,)), may_become_supported=True)
            except NvmlError as error:
                if error.code not in UNSUPPORTED:
                    return None
                continue
            value = value if source.attribute is None else getattr(value, source.attribute)
            # A switch that is not a PCI function of this host has an address of all ones.
            values[name] = source.words.get(value) if source.words else bus_id.parse_bus_id(words("", value))
        return NvlinkPeer(**values) if any(values.values()) else None


CAPABILITIES = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3}
"""NVML's number of each peer-to-peer capability. Some of pynvml's constants for them are wrong."""
STATUSES = {
    0: "ok",
    1: "chipset_not_supported",
    2: "gpu_not_supported",
    3: "topology_not_supported",
    4: "disabled_by_regkey",
    5: "not_supported",
}
TURN_SECONDS = 0.1
"""Seconds per poll for reading peer access. With many GPUs, reading all pairs takes longer than a poll may."""

Access = dict[str, dict[str, str]]
"""NVML's peer access status of one GPU, by UUID of the other GPU and by capability."""


class PeerAccess:
    """Reads the peer access of all pairs of GPUs, some pairs at each poll."""

    def __init__(self) -> None:
        self._access: dict[str, Access] = {}
        self._steps: Iterator[None] = iter(())

    def begin(self, devices: Mapping[str, Device]) -> None:
        """Begin a new reading of all pairs of these GPUs, which calls of `take` carry out. `devices` is by UUID."""
        self._access = {uuid: {} for uuid in devices}
        self._steps = self._read(list(devices.items()))

    def take(self) -> Mapping[str, Access]:
        """Continue for about TURN_SECONDS.

        Return the peer access of all GPUs, by UUID, once it is complete, else {}.
        """
        until = boot_clock() + TURN_SECONDS
        for _ in self._steps:
            if boot_clock() > until:
                return {}
        access, self._access = self._access, {}
        return access

    def _read(self, devices: Sequence[tuple[str, Device]]) -> Iterator[None]:
        for (uuid, device), (other_uuid, other) in combinations(devices, 2):
            access: dict[str, str] = {}
            for capability, number in CAPABILITIES.items():
                status = _status(device, other, number)
                if status is not None:
                    access[capability] = status
                yield
            if access:
                self._access[uuid][other_uuid] = self._access[other_uuid][uuid] = access


def _status(device: Device, other: Device, number: int) -> str | None:
    """Return the peer access status of two GPUs for the capability with this number; None if unknown."""
    arguments = "nvmlDeviceGetP2PStatus", device.handle, other.handle, number
    try:
        return STATUSES.get(device.library.call(*arguments, bus_id=device.bus_id))
    except NvmlError:
        return None
