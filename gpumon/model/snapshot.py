"""The messages of the children: one poll of the node, and everything else that crosses the pipe.

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
"""Where the agent runs. A guest and a container may have only some of the GPUs of the host. In a container the bus
lists all of them.
"""

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
    """NVML's text for the fault."""
    gpu: Gpu | None = None
    """Readings, with raw counters of the driver. None while there is a fault."""
    guest: bool | None = None
    """True if NVML reports a virtual machine, which may have only a part of the fabric."""
    links: Mapping[str, Nvlink] = field(default_factory=dict)
    """NVLinks as NVML reports them. A link that is down may have no peer."""
    peers: Mapping[str, NvlinkPeer] = field(default_factory=dict)
    peer_access: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """P2P status by uuid of the other GPU and capability; empty in polls that do not read it."""
    c2c_links: Mapping[str, C2cLink] = field(default_factory=dict)
    fabric: Fabric | None = None
    platform: Platform | None = None
    migs: tuple[MigReading, ...] = ()
    pids: tuple[int, ...] | None = None
    """Processes that use it, as NVML reports them; None: unknown. Not exported."""
    pids_at: float | None = None
    """Boot clock at which they were read."""
    link_bytes: Mapping[str, float] = field(default_factory=dict)
    """Bytes moved by each NVLink in both directions; read while a probe runs. Not exported."""
    watched: float = 0.0
    """Seconds since this GPU's last reading, or 0 after a gap: the time that the increments cover."""
    increments: Increments = field(default_factory=dict)
    """Increments of the sampler's integrals since the last poll, by row of Gpu."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A poll, or the part of a slow poll that has been read so far."""

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
    """Result of nvmlDeviceGetCount."""
    errors: Mapping[str, float] = field(default_factory=dict)
    """Failed calls and fields of this poll, by "tier,error"."""
    denied: tuple[str, ...] = ()
    """Collectors that lacked permission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PciBus:
    """NVIDIA GPUs on the PCI bus: bus id -> driver bound ("" for none). Needs no NVIDIA driver."""

    functions: Mapping[str, str]
    excluded: tuple[str, ...] = ()
    """Bus ids that the configuration excludes."""
    place: str = HOST
    """One of PLACES: where this agent runs."""
    ports: Mapping[str, str] = field(default_factory=dict)
    """Bus id of a GPU -> address of the PCIe port above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStatus:
    """Result of the initialisation of the driver."""

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
    """MIG instance of the error, if the driver reports it."""
    compute_instance_id: int | None = None
    sequence: int | None = None
    """Sequence number of the record in the kernel log."""
    text: str = ""
    """Text of the kernel without address and number; without process names."""


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
    """Board id of the card (its kind, as named by the vendor); "" if not reported."""
    guid: str = ""
    """Node GUID of its device, which names the card wherever it is; "" where it has none."""
    firmware: str = ""

    @property
    def used(self) -> bool:
        """Return whether it is up or has carried traffic since the boot or the load of its driver."""
        return bool(self.link.port_up or self.counts.link_downs_total or self.counts.receive_bytes_total)


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckProcess:
    """A process that has NVIDIA devices open and is blocked in the kernel."""

    since: float
    """Boot clock at which it was first found blocked."""
    gpus: tuple[str, ...] = ()
    """Minor numbers of the GPUs that it has open, if they can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksSnapshot:
    """One poll of the links child: ports, services that the links need, blocked processes."""

    ended_at: float
    ports: tuple[PortReading, ...] = ()
    services: Mapping[str, bool] = field(default_factory=dict)
    """Unit name -> whether it runs; units that are not installed are left out."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """By collector, in words: what could not be read."""
    denied: tuple[str, ...] = ()
    """Collectors that lacked permission."""
    left_out: int = 0
    """Number of ports beyond the limit, which were not read."""
    stuck: tuple[StuckProcess, ...] | None = None
    """None: unknown."""
    contained: bool | None = None
    """True if the agent, and so NVML, can read the processes of its own container only."""
    ended: tuple[str, ...] = ()
    """Units all of whose processes of the last poll have ended."""
    schedulers: tuple[str, ...] | None = None
    """Schedulers on this host; None: unknown."""


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
    """Number of log messages of a child since its last report."""

    messages: Mapping[str, float]
    """By level."""


ChildMessage = Hello | Logged | PciBus | DriverStatus | Snapshot | XidEvent | TrialResult | LinksSnapshot
