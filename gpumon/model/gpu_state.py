"""The state of one GPU at one time, frozen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpumon.model.error_event import UNNAMED
from gpumon.model.fabric import Fabric, Platform
from gpumon.model.gpu import Gpu
from gpumon.model.nvlink import C2cLink, Nvlink, NvlinkPeer
from gpumon.model.reading import Labels, Table
from gpumon.model.snapshot import MigReading
from gpumon.model.stored_gpu import StoredGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One GPU of the inventory. Identity, up, fault and Xid counters stay; outdated readings disappear."""

    bus_id: str
    uuid: str
    """pci-<bus id> until it has been read."""
    index: int
    gpu: Gpu
    nvml_index: int | None = None
    """NVML's index at the last reading; None if the driver does not list the GPU."""
    fault: str | None = None
    detail: str = ""
    """Text of the fault."""
    since: float | None = None
    """Wall time at which the fault was found."""
    released: bool = False
    """True if it is released or has not been read since a release. `fault` is then the earlier one."""
    restored: bool = False
    """The uuid is from the store: it has not been read in this run of the agent."""
    reset_at: float | None = None
    """Boot clock at which a restart of its counters was detected, by a reset or a reload of the driver."""
    ecc_volatile: Mapping[str, float] | None = None
    """ECC errors since its last reset by severity and location; the exported counters do not restart."""
    links: Mapping[str, Nvlink] = field(default_factory=dict)
    port_above: str | None = None
    """Address of the PCIe port that its link leads to."""
    peers: Mapping[str, NvlinkPeer] = field(default_factory=dict)
    peer_access: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """P2P status by uuid of the other GPU and capability; read when a probe starts. Not exported."""
    c2c_links: Mapping[str, C2cLink] = field(default_factory=dict)
    fabric: Fabric | None = None
    platform: Platform | None = None
    stored: StoredGpu | None = None
    """The row for the store; None until the uuid has been read."""
    migs: tuple[MigReading, ...] = ()
    traffic: float | None = None
    """NVLink and PCIe traffic in both directions, in bytes per second."""
    idle_since: float | None = None
    """Boot clock since when no process uses it; None while one does. For the preflight of the probe."""
    pids: tuple[int, ...] | None = None
    """Processes that use it, as NVML reports them. For the preflight of the probe; not exported."""
    pids_at: float | None = None
    """Boot clock at which they were read."""
    link_bytes: Mapping[str, float] = field(default_factory=dict)
    """Bytes moved by each NVLink in both directions; read while a probe runs. Not exported."""

    @property
    def unnamed(self) -> str:
        """Return its uuid before it was read."""
        return f"{UNNAMED}{self.bus_id.lower()}"

    @property
    def labels(self) -> Labels:
        return (("gpu", str(self.index)), ("uuid", self.uuid))

    def tables(self) -> Iterator[tuple[Table, Labels]]:
        """Yield every table of this GPU without its links."""
        yield self.gpu, self.labels
        for part in (self.fabric, self.platform):
            if part is not None:
                yield part, self.labels
        for mig in self.migs:
            yield mig.mig, (*self.labels, *mig_labels(mig))

    def link_tables(self) -> Iterator[tuple[Table, Labels]]:
        """Yield every table of its links."""
        for links in (self.links, self.peers, self.c2c_links):
            for link, table in links.items():
                yield table, (*self.labels, ("link", link))


def mig_labels(mig: MigReading) -> Labels:
    """Return the labels of a MIG instance, beside those of its GPU."""
    return (
        ("mig_uuid", mig.uuid),
        ("gpu_instance_id", str(mig.gpu_instance_id)),
        ("compute_instance_id", str(mig.compute_instance_id)),
        ("profile", mig.profile),
    )
