"""The shapes of the other documents, and of errors."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gpumon.health.alerts.alert import SEVERITIES
from gpumon.model import fabric as fabric_table
from gpumon.model import gpu as gpu_table
from gpumon.model import infiniband as infiniband_table
from gpumon.model import mig as mig_table
from gpumon.model import node as node_table
from gpumon.model import nvlink as nvlink_table
from gpumon.model.error_event import KINDS, SOURCES
from gpumon.server.schema_health import Health
from gpumon.server.schema_probe import Probe, ProbeResult
from gpumon.server.schema_release import Maintenance, ReleaseWindow
from gpumon.server.shape import Shape, from_table, moment


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


class _NodeBase(Shape):
    host: str
    time: str = moment("When this was answered.")
    state: Literal["ok", "unknown", "warning", "critical"] = Field(
        description="The worst of the problems; unknown while there is none and nothing was judged since the start."
    )
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


class Gpus(Shape):
    gpus: list[Gpu]  # type: ignore[valid-type]


class Links(Shape):
    links: list[Link]  # type: ignore[valid-type]


class Ports(Shape):
    ports: list[Port]  # type: ignore[valid-type]


class Events(Shape):
    events: list[Event] = Field(description="Newest first.")
    complete: bool = Field(description="False: the store did not answer, and only the newest were searched.")


class Alerts(Shape):
    alerts: list[Alert]


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
