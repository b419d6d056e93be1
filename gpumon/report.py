"""The Report: everything the agent knows at one moment, frozen. Outputs read it, `fold` makes the next one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpumon.alerts.alert import Alert
from gpumon.alerts.history import History
from gpumon.arrival import Samplers
from gpumon.health.catalogue import SHIPPED, Catalogue
from gpumon.inventory import KnownGpu
from gpumon.ports import KnownLinks
from gpumon.probe.account import Progress
from gpumon.probe.result import AllReduce, ProbeResult
from gpumon.release import Release
from gpumon.snapshot.burst import Board, Burst
from gpumon.snapshot.bus_id import parsed
from gpumon.snapshot.fabric import Fabric, Platform
from gpumon.snapshot.gpu import Gpu
from gpumon.snapshot.node import Build, Driver, Node
from gpumon.snapshot.nvlink import C2cLink, Nvlink, NvlinkPeer
from gpumon.snapshot.reading import Labels, Sample, Table, samples
from gpumon.snapshot.snapshot import DriverStatus, SeenMig, SeenPort


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One GPU of the inventory. Identity, up, fault and Xid counters never vanish; readings that are not true do."""

    bus_id: str
    uuid: str
    """Until the GPU has told its own: pci-<bus id>."""
    index: int
    gpu: Gpu
    fault: str | None = None
    detail: str = ""
    """The fault in words."""
    since: float | None = None
    """Wall time at which the fault was found."""
    released: bool = False
    """The agent keeps off it, or has not read it since: nobody looks, and a fault is the one that it had before."""
    links: Mapping[str, Nvlink] = field(default_factory=dict)
    peers: Mapping[str, NvlinkPeer] = field(default_factory=dict)
    c2c_links: Mapping[str, C2cLink] = field(default_factory=dict)
    fabric: Fabric | None = None
    platform: Platform | None = None
    migs: tuple[SeenMig, ...] = ()

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


def mig_labels(seen: SeenMig) -> Labels:
    """The labels of a MIG instance, beside those of its GPU."""
    return (
        ("mig_uuid", seen.uuid),
        ("gpu_instance_id", str(seen.gpu_instance_id)),
        ("compute_instance_id", str(seen.compute_instance_id)),
        ("profile", seen.profile),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeState:
    """The all-reduce probe as it stands."""

    metrics: AllReduce = AllReduce()
    last: ProbeResult | None = None
    history: tuple[ProbeResult, ...] = ()
    """Newest last, bounded."""
    running: str | None = None
    """Id of the run in progress."""
    progress: Progress | None = None
    """Where its slowest rank is."""
    next_run: float | None = None
    """Wall time of the next scheduled run."""


Counted = Mapping[str, Mapping[str, tuple[float, float]]]
"""Device -> code -> how often, wall time of the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the next Report needs of this one and no output shows."""

    samplers: Samplers = Samplers()
    status: DriverStatus | None = None
    """None until the first sampler has tried to initialise the driver."""
    bus: Mapping[str, str] | None = None
    """None until somebody looked at the PCI bus."""
    inventory: Mapping[str, KnownGpu] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()
    """Bus ids that the configuration excludes."""
    resuming: Mapping[str, float] = field(default_factory=dict)
    """What was released and has not been read since, by bus id (NODE for the driver itself), with the moment of
    Moment.lived from which that is no longer the release's doing."""
    links: KnownLinks = KnownLinks()
    heard_at: float | None = None
    """When a poll, or a part of one, last arrived, on the clock of Moment.lived."""
    recalled: bool = False
    """The store has told what it knew."""
    looked_back: bool = False
    """The history holds what the store knew of the last hour."""
    xids: Counted = field(default_factory=dict)
    sxids: Counted = field(default_factory=dict)
    boards: Mapping[str, Board] = field(default_factory=dict)
    """Bus id -> the GPU that was last seen there in an earlier life of the agent."""
    history: History = History()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All memory of the agent is in here."""

    started: float
    """Wall time of the agent's start."""
    simulated: str | None = None
    """Name of the simulated profile."""
    detailed: bool = False
    """Details are exported too."""
    build: Build = Build()
    driver: Driver = Driver()
    node: Node = Node()
    gpus: tuple[GpuState, ...] = ()
    ports: tuple[SeenPort, ...] = ()
    """InfiniBand and RoCE; counters as they are exported."""
    excluded: tuple[str, ...] = ()
    """Bus ids of the GPUs that the configuration excludes: on the bus and counted by NVML, and never opened."""
    release: Release = Release()
    """What the agent keeps off now, because it was asked to."""
    events: tuple[Burst, ...] = ()
    """Newest last, bounded."""
    catalogue: Catalogue = SHIPPED
    """What the codes of the events mean, on this host."""
    alerts: tuple[Alert, ...] = ()
    probe: ProbeState = ProbeState()
    notices: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with the agent itself, in words, by subject: driver, store, configuration, ..."""

    memory: Memory = Memory()

    def gpu(self, name: str) -> GpuState | None:
        """The GPU of this uuid, index or PCI address."""
        names = {name, parsed(name)}
        return next((one for one in self.gpus if names & {one.uuid, str(one.index), one.bus_id}), None)

    def samples(self) -> Iterator[Sample]:
        """Every series that the agent exports."""
        for table, labels in self.tables():
            yield from samples(table, labels, detailed=self.detailed)

    def tables(self) -> Iterator[tuple[Table, Labels]]:
        """Every table of metrics with the labels that all its series carry."""
        yield self.build, ()
        yield self.driver, ()
        yield self.node, ()
        for state in self.gpus:
            yield from state.tables()
        for state in self.gpus:
            yield from state.link_tables()
        for port in self.ports:
            named = (("device", port.device), ("port", port.port))
            yield port.link, (*named, ("link_layer", port.link_layer))
            yield port.counts, named
        yield self.probe.metrics, ()
