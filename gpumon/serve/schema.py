"""The shapes of the documents for the OpenAPI page, made from the metric tables: a new row is described by itself."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from gpumon.alerts.alert import SEVERITIES
from gpumon.maintenance import ASKERS as MAINTAINERS
from gpumon.probe.result import OUTCOMES
from gpumon.probe.result import AllReduce as AllReduceTable
from gpumon.release import ASKERS
from gpumon.snapshot import fabric as fabric_table
from gpumon.snapshot import gpu as gpu_table
from gpumon.snapshot import infiniband as infiniband_table
from gpumon.snapshot import mig as mig_table
from gpumon.snapshot import node as node_table
from gpumon.snapshot import nvlink as nvlink_table
from gpumon.snapshot.burst import KINDS, SOURCES
from gpumon.snapshot.reading import Row, Table, rows

MOMENT = "RFC 3339, UTC."


class Shape(BaseModel):
    """Every key is always present; what is not known is null."""

    model_config = ConfigDict(extra="forbid", strict=True)


def moment(text: str) -> Any:
    return Field(description=f"{text} {MOMENT}")


def _type_of(row: Row) -> Any:
    if row.identity:
        return str | None
    shape: Any = float | None
    for _ in row.labels:
        shape = dict[str, shape]
    return shape | None if row.labels else shape


def _described(row: Row) -> str:
    by = f" By {', then '.join(row.labels)}." if row.labels else ""
    return f"{row.help}{by}{' ' + row.note if row.note else ''}"


def from_table(name: str, base: type[Shape], *tables: type[Table]) -> type[Shape]:
    """A shape with every row of these tables beside what `base` has."""
    fields: dict[str, Any] = {
        attribute: (_type_of(row), Field(description=_described(row)))
        for table in tables
        for attribute, row in rows(table).items()
    }
    return create_model(name, __base__=base, **fields)


class Problem(BaseModel):
    """Every error (RFC 9457); some say more, in further members."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="Stable name of the kind of error, a URN.")
    title: str = Field(description="The kind of error in words.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What is wrong with this request.")
    instance: str = Field(description="Path of the request.")
    remedy: str = Field(description="What to do about it.")


class NodeProblem(Shape):
    """One thing that is wrong with the node."""

    severity: Literal["critical", "warning", "info"]
    title: str
    detail: str
    action: str = Field(description="What to do about it.")
    runbook_url: str
    gpu: int | None = Field(description="Index of the GPU that it is about.")
    since: str | None = moment("When it began.")


class Notice(Shape):
    """What is wrong with the agent itself."""

    subject: str
    message: str


Build = from_table("Build", Shape, node_table.Build)
Driver = from_table("Driver", Shape, node_table.Driver)


class ReleaseWindow(Shape):
    """A while for which the agent keeps off one GPU or the whole node."""

    gpu: int | None = Field(description="Index of the GPU; null: the whole node.")
    uuid: str | None
    pci_bus_id: str | None
    by: Literal[ASKERS] = Field(description="Who asked.")  # type: ignore[valid-type]
    since: str = moment("When it began.")
    until: str = moment("When it ends by itself.")
    remaining_seconds: float


class Release(Shape):
    """What the agent keeps off now."""

    released: bool
    windows: list[ReleaseWindow]
    holders: list[str] | None = Field(
        default=None, description="Only with the token: processes of the agent that still hold what is released."
    )


class Maintenance(Shape):
    """A while in which no alert pages."""

    since: str = moment("When it began.")
    until: str = moment("When it ends by itself.")
    reason: str
    by: Literal[MAINTAINERS] = Field(description="Who asked.")  # type: ignore[valid-type]


class MaintenanceState(Shape):
    """Whether the node is in maintenance."""

    maintenance: Maintenance | None = Field(description="The one in force.")


class MaintenanceChanged(MaintenanceState):
    """What became of the request."""

    stored: bool = Field(description="False: the store is out of order, and is told when it can be written again.")


class _NodeBase(Shape):
    host: str
    time: str = moment("When this was answered.")
    state: Literal["ok", "warning", "critical"] = Field(description="The worst of the problems.")
    problems: list[NodeProblem] = Field(description="What is wrong, the worst first.")
    notices: list[Notice]
    simulated_profile: str | None = Field(description="Profile of a simulated node; null on real GPUs.")
    excluded: list[str] = Field(description="PCI bus ids of the GPUs that the configuration excludes: never opened.")
    releases: list[ReleaseWindow] = Field(description="What the agent keeps off now, because it was asked to.")
    maintenance: Maintenance | None = Field(description="The one in force: no alert pages.")
    started: str = moment("When the agent started.")
    booted: str = moment("When the host booted.")
    build: Build  # type: ignore[valid-type]
    driver: Driver  # type: ignore[valid-type]


class _MigBase(Shape):
    mig_uuid: str = Field(description="Identity of the compute instance.")
    gpu_instance_id: int
    compute_instance_id: int
    profile: str = Field(description="As NVIDIA names it: 1c.3g.40gb.")


class _C2cLinkBase(Shape):
    link: int


Fabric = from_table("Fabric", Shape, fabric_table.Fabric)
Platform = from_table("Platform", Shape, fabric_table.Platform)
Mig = from_table("Mig", _MigBase, mig_table.Mig)
C2cLink = from_table("C2cLink", _C2cLinkBase, nvlink_table.C2cLink)


class _GpuBase(Shape):
    gpu: int = Field(description="NVML index under which it was first seen since boot.")
    uuid: str = Field(description="Identity. pci-<bus id> until the GPU has told its own.")
    state: Literal[("up", *gpu_table.FAULTS, "released")] = Field(description="up, the fault, or released.")  # type: ignore[valid-type]
    detail: str = Field(description="The fault in words; empty without one.")
    since: str | None = moment("When the fault was found.")
    fabric: Fabric | None = Field(description="Its place in an NVLink fabric; null where there is none.")  # type: ignore[valid-type]
    platform: Platform | None = Field(description="Where in its rack it sits; null where it cannot tell.")  # type: ignore[valid-type]
    migs: list[Mig] = Field(description="Its MIG instances.")  # type: ignore[valid-type]
    c2c_links: list[C2cLink] = Field(description="Its chip-to-chip links to a Grace CPU.")  # type: ignore[valid-type]


class _LinkBase(Shape):
    gpu: int
    uuid: str
    link: int


class _PortBase(Shape):
    device: str = Field(description="Name of the host channel adapter.")
    port: str
    link_layer: str = Field(description="InfiniBand, or Ethernet for RoCE.")


Node = from_table("Node", _NodeBase, node_table.Node)
Gpu = from_table("Gpu", _GpuBase, gpu_table.Gpu)
Link = from_table("Link", _LinkBase, nvlink_table.Nvlink, nvlink_table.NvlinkPeer)
Port = from_table("Port", _PortBase, infiniband_table.InfinibandLink, infiniband_table.InfinibandPort)
AllReduceMetrics = from_table("AllReduceMetrics", Shape, AllReduceTable)


class Event(Shape):
    """An error of a GPU or an NVSwitch, however often it came without a pause of three minutes."""

    id: str
    kind: Literal[KINDS] = Field(  # type: ignore[valid-type]
        description="xid: of a GPU. sxid: of an NVSwitch. overrun: records of the kernel log were lost. "
        "aer: a fatal error of a PCIe device. nic: of a network adapter."
    )
    time: str = moment("When it was last seen.")
    since: str = moment("When it was first seen.")
    count: int = Field(description="How often it was seen.")
    severity: Literal[SEVERITIES] = Field(description="What it means now and on this host.")  # type: ignore[valid-type]
    xid: int | None
    sxid: int | None
    name: str = Field(description="The code in words.")
    action: str = Field(description="What to do at once.")
    if_it_recurs: str = Field(description="What to do when it comes again.")
    detail: str = Field(description="What the numbers in the text mean; empty where they say nothing more.")
    text: str = Field(description="The kernel's words, without names and ids of processes; empty without any.")
    gpu: int | None = Field(description="Index of the GPU; null for one that is not in the inventory.")
    uuid: str | None = Field(description="Of the GPU, also of one that was last seen before the host was booted.")
    pci_bus_id: str | None = Field(description="Of the GPU, NVSwitch, adapter or PCIe port.")
    gpu_instance_id: int | None = Field(description="On a partitioned GPU, where it is known, and it is one.")
    compute_instance_id: int | None
    sources: list[Literal[SOURCES]] = Field(description="Who told it.")  # type: ignore[valid-type]
    historical: bool = Field(description="It was there before the agent was first installed: counted nowhere.")
    cancelled: str | None = moment("When another Xid said that it is over.")


class Alert(Shape):
    """An instance of a rule."""

    rule: str
    severity: Literal[SEVERITIES]  # type: ignore[valid-type]
    state: Literal["pending", "firing", "resolved"]
    labels: dict[str, str]
    summary: str
    description: str
    runbook_url: str
    value: float | None
    since: str = moment("When the expression became true.")
    firing_since: str | None = moment("When it began to fire.")
    resolved_at: str | None = moment("When it was resolved.")


class Measurement(Shape):
    """One size of the ladder."""

    collective: str
    algorithm: str = Field(description="default: what NCCL chooses; ring: without NVLink SHARP.")
    dtype: str
    bytes: int
    iterations: int
    algbw_bytes_per_second: float
    busbw_bytes_per_second: float = Field(description="As nccl-tests define it.")
    latency_seconds: dict[str, float] = Field(description="By percentile: p50, p95, p99.")
    min_seconds: float | None
    variation_ratio: float | None = Field(description="Standard deviation over mean.")
    wrong_elements: int


class Conditions(Shape):
    """On what a run ran; only runs under the same conditions are compared."""

    model: str
    gpus: list[str] = Field(description="UUIDs in the order of the ranks; empty on the CPU.")
    driver: str
    host_gpus: int


class Comparison(Shape):
    """One measurement beside what was to be expected, in bytes a second."""

    collective: str
    algorithm: str
    dtype: str
    bytes: int
    busbw: float
    baseline: float | None = Field(description="Median of this host's own runs under the same conditions.")
    spread: float | None
    runs: int
    expected: float | None = Field(description="The shipped figure for this hardware.")
    source: str
    fleet: float | None
    low: str = Field(description="Which of them it falls short of: baseline, expected, fleet, or nothing.")


class Pair(Shape):
    """What two ranks exchanged with each other alone."""

    ranks: list[int]
    bandwidth: float = Field(description="Bytes a second, each way.")
    wrong: list[int] = Field(description="Wrong elements from the first, and from the second.")


class Location(Shape):
    """Where the trouble is, as far as it can be said."""

    sentence: str
    ranks: list[int]
    gpus: list[str]
    pairs: list[Pair]
    evidence: list[str]


class ProbeResult(Shape):
    """One run, however it ended."""

    id: str
    probe: str
    outcome: Literal[OUTCOMES]  # type: ignore[valid-type]
    reason: str
    hint: str
    trigger: str
    started: str = moment("When it started.")
    duration_seconds: float
    backend: str
    ranks: int
    versions: dict[str, str]
    conditions: Conditions
    measurements: list[Measurement]
    comparisons: list[Comparison] = Field(description="Of each size that saturates the links.")
    location: Location | None = Field(description="Where a confirmed drop or wrong data comes from.")
    wrong_elements: int | None
    settings: dict[str, str] = Field(description="NCCL's variables and the lines of /etc/nccl.conf.")
    simulated: bool


class ProbeResultWithLog(ProbeResult):
    """One run with what its ranks printed, for who has the token."""

    log: str | None = Field(default=None, description="Only with the token: it names processes.")


class Progress(Shape):
    """Where the slowest rank of a run is."""

    rank: int
    stage: str
    bytes: int | None
    ratio: float = Field(description="Share of the measuring that is done.")


class Probe(Shape):
    """The all-reduce probe as it stands."""

    probe: str
    running: str | None = Field(description="Id of the run in progress.")
    progress: Progress | None
    next_run: str | None = moment("When the next run is due.")
    age_seconds: float | None = Field(description="Since the last run ended.")
    last: ProbeResult | None
    metrics: AllReduceMetrics  # type: ignore[valid-type]


class ProbeStarted(Shape):
    """A run that was started, or joined."""

    id: str
    accepted: bool = Field(description="False: a run was in progress, and this is its id.")


class ProbeRunning(Shape):
    """A run in progress."""

    id: str
    running: Literal[True]


class Gpus(Shape):
    gpus: list[Gpu]  # type: ignore[valid-type]


class Links(Shape):
    links: list[Link]  # type: ignore[valid-type]


class Ports(Shape):
    ports: list[Port]  # type: ignore[valid-type]


class Events(Shape):
    events: list[Event] = Field(description="Newest first.")
    complete: bool = Field(description="False: the store did not answer, and only the newest were searched.")


Word = Literal["ok", "unknown", "warn", "fail"]


class Verdict(Shape):
    """What a check found of one device, and what to do about it."""

    check: str
    level: Word
    title: str = Field(description="What is wrong when this check speaks.")
    device: str | None = Field(description="uuid of a GPU, `device/port` of a port; null for the node.")
    gpu: int | None
    reason: str = Field(description="In words, with the numbers that matter.")
    action: str = Field(description="none, restart, reset, reboot, inspect or replace.")
    action_words: str
    evidence: dict[str, float | str]
    active: bool = Field(description="It is so now; false: it was, and stays until something clears it.")
    since: str = moment("When it was raised.")
    seen: str = moment("When it was last so.")


class PrimaryVerdict(Verdict):
    consequences: list[Verdict] = Field(description="What follows from it.")


class GpuLevel(Shape):
    gpu: int
    uuid: str
    pci_bus_id: str
    migs: list[str] = Field(description="uuids of its MIG instances.")
    level: Word
    fault: str | None
    released: bool = Field(description="The agent keeps off it: nobody looks.")


class Ruling(Shape):
    """What became of a verdict."""

    time: str = moment("When.")
    change: Literal["raised", "changed", "cleared"]
    way: str | None = Field(description="Why it was cleared.")
    way_words: str
    note: str = Field(description="Of the person who acknowledged it.")
    muted: bool = Field(description="The node was in maintenance.")
    verdict: Verdict


class KeptVerdict(Verdict):
    why: str = Field(description="Why it cannot be acknowledged.")


class Acknowledged(Shape):
    """What became of what was to be acknowledged."""

    acknowledged: list[Verdict]
    kept: list[KeptVerdict] = Field(description="Those that cannot be.")
    stored: bool = Field(description="False: the store is out of order, and is told when it can be written again.")


class Health(Shape):
    """The node's health."""

    level: Word
    judged: str | None = moment("When last, which is every 5 s; null until then after a start of the agent.")
    judged_age_seconds: float | None = Field(
        description="How long ago that was, by a clock that nobody sets: more than a minute, and the agent is stuck."
    )
    score: float | None = Field(description="0 to 100, by the last 30 days: 100 is a node that nothing happened to.")
    verdicts: list[PrimaryVerdict] = Field(description="The worst first.")
    gpus: list[GpuLevel]
    maintenance: Maintenance | None = Field(description="The one in force: what is ruled in it is muted.")
    rulings: list[Ruling] = Field(description="The newest first.")


class Alerts(Shape):
    alerts: list[Alert]


class Probes(Shape):
    probes: list[ProbeResult] = Field(description="Newest first.")


class Report(Shape):
    """Everything, from one moment."""

    node: Node  # type: ignore[valid-type]
    gpus: list[Gpu]  # type: ignore[valid-type]
    links: list[Link]  # type: ignore[valid-type]
    ports: list[Port]  # type: ignore[valid-type]
    health: Health
    alerts: list[Alert]
    events: list[Event]
    probe: Probe
    probes: list[ProbeResult]
