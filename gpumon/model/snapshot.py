"""One poll of the node, and what else a child may say: the values that cross the pipe.

Times: `*_at` in seconds of CLOCK_BOOTTIME, for deadlines and rates; `wall` in seconds since the epoch, for display.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpumon.model.fabric import Fabric, Platform
from gpumon.model.gpu import Gpu
from gpumon.model.infiniband import InfinibandLink, InfinibandPort
from gpumon.model.mig import Mig
from gpumon.model.nvlink import C2cLink, Nvlink, NvlinkPeer

HOST, GUEST, CONTAINER = PLACES = ("host", "guest", "container")
"""A guest and a container may have been given some of a host's GPUs; in a container the bus is the whole host's."""

Increments = Mapping[str, float | Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigReading:
    """One compute instance of a GPU that is partitioned, in one poll."""

    uuid: str
    gpu_instance_id: int
    compute_instance_id: int
    profile: str
    """As NVIDIA names it: `1c.3g.40gb`."""
    mig: Mig


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU in one poll: its readings, or why there are none."""

    bus_id: str
    uuid: str | None = None
    index: int | None = None
    fault: str | None = None
    error: str = ""
    """NVML's words for the fault."""
    gpu: Gpu | None = None
    """Readings; counters are the driver's raw values. None while a fault hides them."""
    guest: bool | None = None
    """NVML says that this is a virtual machine, which may have been given a part of the fabric."""
    links: Mapping[str, Nvlink] = field(default_factory=dict)
    """As NVML gives them: one that is down may be one that leads nowhere."""
    peers: Mapping[str, NvlinkPeer] = field(default_factory=dict)
    peer_access: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Whether it and others reach each other's memory, by UUID of the other and capability; told when read anew."""
    c2c_links: Mapping[str, C2cLink] = field(default_factory=dict)
    fabric: Fabric | None = None
    platform: Platform | None = None
    migs: tuple[MigReading, ...] = ()
    pids: tuple[int, ...] | None = None
    """Of the processes that hold it, as NVML gives them; None: not known. Nothing shows them."""
    pids_at: float | None = None
    """When NVML was asked for them."""
    link_bytes: Mapping[str, float] = field(default_factory=dict)
    """That each NVLink has moved, both ways; read while a probe runs. Nothing shows them."""
    watched: float = 0.0
    """Seconds since this GPU's last reading, 0 after a gap: what the increments cover."""
    increments: Increments = field(default_factory=dict)
    """By row of Gpu: what our own integrals gained since the last poll."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A poll, or of a slow one what has been read so far."""

    ended_at: float
    wall: float
    durations: Mapping[str, float]
    """Seconds, by tier that this poll read."""
    gpus: tuple[GpuReading, ...]
    present: tuple[str, ...] = ()
    """Bus ids of all GPUs that this sampler watches, read in this poll or not."""
    complete: bool = True
    """False: other GPUs are still to come, in a later snapshot of the same poll."""
    visible: int | None = None
    """What nvmlDeviceGetCount answered."""
    errors: Mapping[str, float] = field(default_factory=dict)
    """Failed calls and fields of this poll, by "tier,error"."""
    denied: tuple[str, ...] = ()
    """Collectors that lacked permission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PciBus:
    """NVIDIA GPUs on the PCI bus: bus id -> driver bound ("" for none). Needs no NVIDIA driver."""

    functions: Mapping[str, str]
    excluded: tuple[str, ...] = ()
    """Those that the configuration excludes."""
    place: str = HOST
    """One of PLACES: where this agent runs."""
    ports: Mapping[str, str] = field(default_factory=dict)
    """By GPU, the address of the PCIe port above it, where it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStatus:
    """Whether the driver could be initialised, and if not, what is missing."""

    up: bool
    error: str = ""
    """Name of NVML's error, as in "DriverNotLoaded"."""
    remedy: str = ""
    driver: str | None = None
    nvml: str | None = None
    cuda: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEvent:
    """An Xid that the driver reported."""

    xid: int
    bus_id: str
    uuid: str | None
    at: float
    wall: float
    source: str = "nvml"
    """nvml, or kmsg for the kernel log."""
    gpu_instance_id: int | None = None
    """On a GPU that is partitioned, where the driver can say."""
    compute_instance_id: int | None = None
    sequence: int | None = None
    """Of the kernel log's record."""
    text: str = ""
    """The kernel's words, without address and number; names no process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortReading:
    """One InfiniBand or RoCE port; counters are the kernel's raw values."""

    device: str
    port: str
    link_layer: str
    """InfiniBand or Ethernet."""
    link: InfinibandLink
    counts: InfinibandPort
    bus_id: str = ""
    """PCI address of its device, in NVML's spelling; "" where it has none."""
    board: str = ""
    """What kind of card it is on, by its vendor's own name; "" where it does not say."""
    guid: str = ""
    """Node GUID of its device, which names the card wherever it is; "" where it has none."""
    firmware: str = ""

    @property
    def used(self) -> bool:
        """It is up, or has carried something since the host was booted or its driver loaded."""
        return bool(self.link.port_up or self.counts.link_downs_total or self.counts.receive_bytes_total)


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckProcess:
    """A process that holds NVIDIA's devices and has not come back from the kernel; nobody need know which one."""

    since: float
    """When it was first seen so, on the boot clock."""
    gpus: tuple[str, ...] = ()
    """Minor numbers of the GPUs that it holds, where that can still be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksSnapshot:
    """What the links child saw: all ports, the services that the links need, processes that are stuck."""

    ended_at: float
    ports: tuple[PortReading, ...] = ()
    services: Mapping[str, bool] = field(default_factory=dict)
    """Unit name -> whether it runs; units that are not installed are left out."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """By collector, in words: what could not be read."""
    denied: tuple[str, ...] = ()
    """Collectors that lacked permission."""
    left_out: int = 0
    """Ports beyond the most that are read."""
    stuck: tuple[StuckProcess, ...] | None = None
    """None: nobody can tell."""
    contained: bool | None = None
    """The agent, and so NVML, sees the processes of a container alone."""
    ended: tuple[str, ...] = ()
    """Units none of whose processes is one of those that it had at the look before."""
    schedulers: tuple[str, ...] | None = None
    """What gives this host to jobs; None: nobody can tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first frame of every child."""

    version: str
    schema: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """A trial child read this GPU through all tiers."""

    bus_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """What a child has logged since it last said so."""

    messages: Mapping[str, float]
    """By level."""


ChildMessage = Hello | Logged | PciBus | DriverStatus | Snapshot | XidEvent | TrialResult | LinksSnapshot
