"""The state of one GPU at one time, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpumon.model.error_event import UNNAMED
from gpumon.model.gpu import Gpu
from gpumon.model.nvlink import C2cLink, ExpectedLinks, Fabric, Nvlink, NvlinkPeer, Platform
from gpumon.model.reading import Labels
from gpumon.model.records import Counts, StoredGpu
from gpumon.model.snapshot import GpuReading, MigReading


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One GPU: its identity, its last reading, and the state of its counters.

    As outputs and checks read it (`state.gpu_view`), a GPU that does not answer (`fault` has the reason) or is released
    has only these: identity, verdict level, observed seconds, Xid counters, `reset_at`, `port_above`, `peers`,
    `peer_access`, `platform` and `stored`. All other readings are None or empty.
    """

    bus_id: str
    uuid: str
    """UUID of the GPU; `pci-<bus id>` until the driver has reported it."""
    index: int
    gpu: Gpu = Gpu()
    nvml_index: int | None = None
    """NVML's index at the last reading; None if the driver does not list the GPU."""
    fault: str | None = None
    detail: str = ""
    """Text that describes the fault."""
    since: float | None = None
    """Wall time in seconds at which the fault was detected; None without a fault."""
    released: bool = False
    """True from the start of the GPU's release until its next reading. Meanwhile `fault` remains as it was before."""
    restored: bool = False
    """True if the uuid is from the store, because the driver has not reported it since the agent started."""
    reset_at: float | None = None
    """Boot clock at which the GPU's counters last restarted, by a reset or a driver reload; None if never."""
    ecc_volatile: Mapping[str, float] | None = None
    """ECC errors since the last GPU reset, by "severity,location". They restart at 0; the exported counters do not."""
    links: Mapping[str, Nvlink] = field(default_factory=dict)
    port_above: str | None = None
    """PCI address of the PCIe port that the GPU is connected to; None if unknown."""
    peers: Mapping[str, NvlinkPeer] = field(default_factory=dict)
    peer_access: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """P2P status by uuid of the other GPU, then by capability. Read when a probe starts; not exported."""
    c2c_links: Mapping[str, C2cLink] = field(default_factory=dict)
    fabric: Fabric | None = None
    platform: Platform | None = None
    stored: StoredGpu | None = None
    """The GPU's row in the table `gpus` of the store; None until the uuid has been read or found in the store."""
    migs: tuple[MigReading, ...] = ()
    link_rates: Mapping[str, float] = field(default_factory=dict)
    """Traffic over NVLink and PCIe in bytes per second, by row of Gpu (`nvlink_receive_bytes_total`, ...)."""
    idle_since: float | None = None
    """Boot clock since which only the agent's probe or no process uses the GPU; None if not so, or without answer."""
    pids: tuple[int, ...] | None = None
    """Ids of processes that use the GPU, from NVML; None if unknown. Not exported."""
    pids_at: float | None = None
    """Boot clock in seconds at which `pids` was read."""
    link_bytes: Mapping[str, float] = field(default_factory=dict)
    """Bytes moved by each NVLink in both directions, by link number. Read only while a probe runs; not exported."""

    # for the reducer only

    identity: Mapping[str, str] = field(default_factory=dict)
    reading: GpuReading | None = None
    """Last reading without a fault; None if the GPU has not been read."""
    read_at: float | None = None
    """Time of `reading`, as Now.uptime."""
    observed_seconds: float = 0.0
    counters: Counts = field(default_factory=dict)
    link_counters: Mapping[str, Counts] = field(default_factory=dict)
    link_sums: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Sums of the counters over all NVLinks read since the start of the agent, by row of Nvlink and label value."""
    expects: ExpectedLinks = ExpectedLinks.UNKNOWN
    """Rule that decides which of the GPU's NVLinks should be up."""
    passed_through_links: frozenset[str] = frozenset()
    """NVLinks whose other end is a GPU that is passed through to a virtual machine."""
    links_once_up: frozenset[str] = frozenset()
    """NVLinks that have been up at least once since the start of the agent."""
    index_confirmed: bool = False
    """True if the index was assigned from a reading in this boot; False if it is assumed until the GPU is read."""
    own_at: float = 0.0
    """Boot clock of the last reading while the agent's probe used the GPU."""
    absent: bool = False
    """True if the last complete poll did not list the GPU, only the store has it, or another GPU has its address."""

    @property
    def pci_name(self) -> str:
        """Return the substitute for the uuid, `pci-<bus id>`, that is used until the uuid has been read."""
        return f"{UNNAMED}{self.bus_id.lower()}"

    @property
    def labels(self) -> Labels:
        return (("gpu", str(self.index)), ("uuid", self.uuid))


def mig_labels(mig: MigReading) -> Labels:
    """Return the labels that identify a MIG instance, in addition to the labels of its GPU."""
    return (
        ("mig_uuid", mig.uuid),
        ("gpu_instance_id", str(mig.gpu_instance_id)),
        ("compute_instance_id", str(mig.compute_instance_id)),
        ("profile", mig.profile),
    )
