"""Messages that child processes send to the daemon, and the states of children, from the services that supervise them.

Times: `at` and `*_at` are seconds of CLOCK_BOOTTIME, for deadlines and rates; `wall` is Unix time, for display.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from gpumon.model.frame import Frame
from gpumon.model.gpu import Gpu
from gpumon.model.infiniband import EFA, FABRIC, InfinibandLink, InfinibandPort, Placement
from gpumon.model.mig import Mig
from gpumon.model.nvlink import C2cLink, Fabric, Nvlink, NvlinkPeer, Platform

HOST, GUEST, CONTAINER, SANDBOX = PLACES = ("host", "guest", "container", "sandbox")
"""Where the agent runs. A guest (virtual machine) or a container may have only some of the host's GPUs. In a container
the PCI bus still lists all GPUs; in a sandbox sysfs shows no NVIDIA GPU, although the driver lists some.
"""

ValueT = TypeVar("ValueT", bound=Frame)
Increments = Mapping[str, float | Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigReading:
    """Reading of one MIG compute instance in one poll."""

    uuid: str
    gpu_instance_id: int
    compute_instance_id: int
    profile: str
    """MIG profile as NVIDIA names it, for example `1c.3g.40gb`."""
    mig: Mig


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """Result of one poll for one GPU: its readings, or the fault that prevents them."""

    bus_id: str
    uuid: str | None = None
    index: int | None = None
    fault: str | None = None
    error: str = ""
    """Text of NVML's error; empty without a fault."""
    gpu: Gpu | None = None
    """Readings, with the raw counter values of the driver. None while the GPU has a fault."""
    guest: bool | None = None
    """True if NVML reports that the node is a virtual machine, which may have only a part of the NVLink fabric."""
    links: Mapping[str, Nvlink] = field(default_factory=dict)
    """NVLinks by link number. A link that is down may have no entry in `peers`."""
    peers: Mapping[str, NvlinkPeer] = field(default_factory=dict)
    peer_access: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """P2P status by uuid of the other GPU, then by capability. Empty in polls that do not read it."""
    c2c_links: Mapping[str, C2cLink] = field(default_factory=dict)
    fabric: Fabric | None = None
    platform: Platform | None = None
    migs: tuple[MigReading, ...] = ()
    pids: tuple[int, ...] | None = None
    """Ids of processes that use the GPU, as NVML reports them; None if unknown. Not exported."""
    pids_at: float | None = None
    """Boot clock in seconds at which `pids` was read."""
    slow_at: float | None = None
    """Boot clock in seconds at which the slow tier, and so the NVLink byte counters, were last read. Not exported."""
    link_bytes: Mapping[str, float] = field(default_factory=dict)
    """Bytes moved by each NVLink in both directions, by link number. Read only while a probe runs; not exported."""
    watched: float = 0.0
    """Seconds since the last reading of this GPU, which `increments` cover; 0 after a gap in the readings."""
    increments: Increments = field(default_factory=dict)
    """Increase, since the last reading, of each integral that the sampler computes, by attribute of Gpu."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Frame):
    """GPUs that the sampler has read since its previous Snapshot: one poll, or a part of a slow or rare one."""

    changing: ClassVar[Mapping[str, str]] = {"gpus": "bus_id"}

    ended_at: float
    wall: float
    durations: Mapping[str, float]
    """Seconds that the poll took for each tier that was read, by name of the tier."""
    gpus: tuple[GpuReading, ...]
    present: tuple[str, ...] = ()
    """Bus ids of all GPUs that this sampler opens, whether read in this poll or not."""
    complete: bool = True
    """False if some GPUs remain to be read or opened. A later Snapshot will contain them."""
    visible: int | None = None
    """Number of GPUs that nvmlDeviceGetCount returns; None if the call failed."""
    errors: Mapping[str, float] = field(default_factory=dict)
    """Number of failed calls and fields in this poll, by "tier,error"."""
    denied: tuple[str, ...] = ()
    """Names of collectors that lacked a permission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PciBus(Frame):
    """NVIDIA GPUs on the PCI bus, from sysfs: `functions` is the bound kernel driver ("" for none) by bus id."""

    functions: Mapping[str, str]
    excluded: tuple[str, ...] = ()
    """Bus ids of GPUs that the configuration excludes."""
    unmatched: tuple[str, ...] = ()
    """Entries of `gpus.exclude` that no GPU on the bus has."""
    place: str = HOST
    """Where the agent runs, one of PLACES."""
    ports: Mapping[str, str] = field(default_factory=dict)
    """PCI address of the PCIe port above each GPU, by bus id of the GPU."""
    slot_lanes: Mapping[str, int] = field(default_factory=dict)
    """Number of PCIe lanes that the port above each GPU supports, by bus id of the GPU."""
    nvswitches: int = 0
    """Number of NVSwitches on the bus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStatus(Frame):
    """Result of an attempt to initialise the driver."""

    up: bool
    error: str = ""
    """Name of NVML's error, for example "DriverNotLoaded"; empty on success."""
    remedy: str = ""
    driver: str | None = None
    nvml: str | None = None
    cuda: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PortReading:
    """Reading of one port. In the child's message, `counts` has the raw counters; in the Report, the exported ones."""

    device: str
    port: str
    link_layer: str
    """Link layer: "InfiniBand" or "Ethernet"."""
    link: InfinibandLink
    counts: InfinibandPort
    bus_id: str = ""
    """PCI address of the port's card in NVML's form; "" for a device that is not on the PCI bus."""
    board: str = ""
    """Board id of the card, by which the vendor names the card's model; "" if not reported."""
    guid: str = ""
    """Node GUID, which identifies the card in any slot; "" if the card has none."""
    firmware: str = ""
    driver: str = ""
    """Kernel driver of the network adapter; "" if sysfs names none."""
    restricted: bool = False
    """True if the counters must not be read, because the fabric manager or another host manages this PCI function."""
    placement: Placement = Placement()
    role: str = FABRIC
    role_reason: str = ""
    """Why the port has its `role`, FABRIC or OTHER. The daemon sets both attributes."""

    @property
    def used(self) -> bool:
        """Return True if the port is up, or if its counters show that it went down or received data at some time.

        An EFA port always counts as used, because its state is unknown if it has no network interface.
        """
        counted = self.counts.link_downs_total or self.counts.receive_bytes_total
        return bool(self.link.port_up or counted or self.driver == EFA)


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckProcess:
    """A process that has NVIDIA devices open and is blocked in the kernel."""

    since: float
    """Boot clock in seconds at which the process was first found blocked."""
    gpus: tuple[str, ...] = ()
    """Minor numbers of the GPUs that the process has open; empty if they cannot be read."""
    in_driver: bool | None = None
    """True if the process is blocked in NVIDIA's driver; None if its kernel stack cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortReadings(Frame):
    """Value of the reader `infiniband`."""

    ports: tuple[PortReading, ...] = ()
    left_out: int = 0
    """Number of ports that were not read, because the node has more ports than the maximum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReadings(Frame):
    """Value of the reader `services`."""

    running: Mapping[str, bool] = field(default_factory=dict)
    """True for each systemd unit that runs, else False, by unit name. Units that are not installed are absent."""
    ended: tuple[str, ...] = ()
    """Systemd units that stopped or restarted since the last turn: all processes that they had then have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReadings(Frame):
    """Value of the reader `processes`."""

    stuck: tuple[StuckProcess, ...] | None = None
    """Processes blocked in the kernel with NVIDIA devices open; None if unknown."""
    contained: bool | None = None
    """True if the agent runs in a PID namespace other than the host's: the agent and NVML then list only the processes
    of this container. None if unknown.
    """
    fabric_manager: bool | None = None
    """True if a fabric manager process runs, also in a container; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerReadings(Frame):
    """Value of the reader `schedulers`."""

    names: tuple[str, ...] | None = None
    """Names of the job schedulers on this host; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSnapshot(Frame):
    """Result of one poll of the host child."""

    ended_at: float
    values: Mapping[str, Frame | None] = field(default_factory=dict)
    """Value of each reader that had its turn, by its name; None if it is quarantined or failed."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Text that describes what a reader could not read in its last turn, by name of the reader."""
    denied: tuple[str, ...] = ()
    """Names of readers that lacked a permission in their last turn."""

    def value(self, kind: type[ValueT]) -> ValueT:
        """Return the value of this type; one without attributes, which is "unknown", if there is none."""
        return next((value for value in self.values.values() if isinstance(value, kind)), None) or kind()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Frame):
    """First frame of a sampler, trial or host child: its version, the schema of its frames, and its process id."""

    version: str
    schema: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult(Frame):
    """Message from a trial child: all calls on the quarantined subject returned, perhaps with an error."""

    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged(Frame):
    """Message that counts the log messages of a child since its previous Logged message."""

    messages: Mapping[str, float]
    """Number of log messages by level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Quarantine of a GPU or device: children open it only as a retry, because calls on it may hang or crash."""

    fault: str
    detail: str
    wall: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerStatus:
    """State of the sampler children, sent by the service that supervises them."""

    stuck_seconds: float = 0.0
    """Seconds for which the current driver call has not returned; 0 if no call is in progress."""
    quarantined: Mapping[str, Quarantine] = field(default_factory=dict)
    """Quarantined GPUs by bus id."""
    restarts: Mapping[str, float] = field(default_factory=dict)
    """Number of restarts of the sampler, by reason."""
    abandoned: tuple[str, ...] = ()
    """Names of the child processes that SIGKILL did not end."""
    gave_up: bool = False
    """True if no sampler runs, because too many children were abandoned."""
    hang: str = ""
    """A clause that names the driver call that does not return and when that began; empty after a snapshot."""
    driver_calls: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatus:
    """State of the host child, sent by the service that supervises the child."""

    quarantined: Mapping[str, Quarantine] = field(default_factory=dict)
    """Quarantined devices and collectors by name. Their files are not read, because a read of them blocked."""
    abandoned: tuple[str, ...] = ()
    """Names of the child processes that SIGKILL did not end."""
    trouble: str = ""
    """Reason why no host child runs; empty if one runs."""
