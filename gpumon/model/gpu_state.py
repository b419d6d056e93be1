"""What is known of one GPU at one moment, frozen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpumon.model.fabric import Fabric, Platform
from gpumon.model.gpu import Gpu
from gpumon.model.nvlink import C2cLink, Nvlink, NvlinkPeer
from gpumon.model.reading import Labels, Table
from gpumon.model.snapshot import MigReading
from gpumon.model.stored_gpu import StoredGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One GPU of the inventory. Identity, up, fault and Xid counters never vanish; readings that are not true do."""

    bus_id: str
    uuid: str
    """Until the GPU has told its own: pci-<bus id>."""
    index: int
    gpu: Gpu
    nvml_index: int | None = None
    """What the driver last called it; None while the driver does not list it, or nobody can tell."""
    fault: str | None = None
    detail: str = ""
    """The fault in words."""
    since: float | None = None
    """Wall time at which the fault was found."""
    released: bool = False
    """The agent keeps off it, or has not read it since: nobody looks, and a fault is the one that it had before."""
    restored: bool = False
    """It has not told its name in this life of the agent: the store knows it."""
    reset_at: float | None = None
    """Boot clock at which its counters were seen to have begun anew: a reset, or a driver that was loaded again."""
    ecc_volatile: Mapping[str, float] | None = None
    """ECC errors since its last reset by severity and location, as the driver counts: the exported ones count on."""
    links: Mapping[str, Nvlink] = field(default_factory=dict)
    port_above: str | None = None
    """Address of the PCIe port that its link leads to."""
    peers: Mapping[str, NvlinkPeer] = field(default_factory=dict)
    peer_access: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By UUID of another GPU and capability, as NVML last said; read when a probe begins. Nothing else shows it."""
    c2c_links: Mapping[str, C2cLink] = field(default_factory=dict)
    fabric: Fabric | None = None
    platform: Platform | None = None
    stored: StoredGpu | None = None
    """What the store is to know of it; None until it has told its name."""
    migs: tuple[MigReading, ...] = ()
    traffic: float | None = None
    """Over NVLink and PCIe, both ways, in bytes a second."""
    idle_since: float | None = None
    """Boot clock since when nobody has been seen to use it; None while somebody does. For the guard of the probe."""
    pids: tuple[int, ...] | None = None
    """Of the processes that hold it, as NVML gives them. For the guard of the probe: nothing shows them."""
    pids_at: float | None = None
    """Boot clock at which NVML was asked for them."""
    link_bytes: Mapping[str, float] = field(default_factory=dict)
    """That each NVLink has moved, both ways; known while a probe runs. For what it says: nothing shows them."""

    @property
    def labels(self) -> Labels:
        return (("gpu", str(self.index)), ("uuid", self.uuid))

    def tables(self) -> Iterator[tuple[Table, Labels]]:
        """Every table of this GPU, less its links."""
        yield self.gpu, self.labels
        for part in (self.fabric, self.platform):
            if part is not None:
                yield part, self.labels
        for one in self.migs:
            yield one.mig, (*self.labels, *mig_labels(one))

    def link_tables(self) -> Iterator[tuple[Table, Labels]]:
        """Every table of its links."""
        for links in (self.links, self.peers, self.c2c_links):
            for link, table in links.items():
                yield table, (*self.labels, ("link", link))


def mig_labels(seen: MigReading) -> Labels:
    """The labels of a MIG instance, beside those of its GPU."""
    return (
        ("mig_uuid", seen.uuid),
        ("gpu_instance_id", str(seen.gpu_instance_id)),
        ("compute_instance_id", str(seen.compute_instance_id)),
        ("profile", seen.profile),
    )
