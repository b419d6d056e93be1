"""Responses about stored errors of devices, the audit, the node and the agent, and the whole report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import Field
from typing_extensions import Self

from gpumon.health.alert_texts import SEVERITIES
from gpumon.health.catalogue import RECOVERY_ACTION
from gpumon.model import node
from gpumon.model.allocation import Allocation
from gpumon.model.error_event import AER, KINDS, SOURCES, SXID, XID, ErrorEvent
from gpumon.model.time_window import WindowKind, in_force
from gpumon.outputs.formatting import rfc3339
from gpumon.outputs.problems import problems, worst
from gpumon.outputs.responses.base import (
    HostTime,
    ResponseModel,
    Timestamp,
    metric_rows,
    row_values,
    timestamp,
    with_fields,
)
from gpumon.outputs.responses.devices import (
    GpuResponse,
    GpusResponse,
    NvlinkResponse,
    NvlinksResponse,
    PortResponse,
    PortsResponse,
)
from gpumon.outputs.responses.health import AlertResponse, HealthResponse
from gpumon.outputs.responses.jobs import JobsResponse
from gpumon.outputs.responses.probes import ProbeResponse, RunResponse
from gpumon.outputs.responses.windows import MaintenanceResponse, ReleaseWindowResponse
from gpumon.state.report import Report


class EventResponse(ResponseModel):
    """One error, or a burst: repetitions of the same error, each at most three minutes after the one before."""

    id: str
    kind: Literal[KINDS] = Field(  # type: ignore[valid-type]
        description="xid: error of a GPU. sxid: error of an NVSwitch. overrun: records of the kernel log were lost. "
        "aer: uncorrected error of a PCIe device. nic: error of a network adapter. "
        "driver: error of NVIDIA's driver without a device."
    )
    time: str = timestamp("When the event last occurred.")
    since: str = timestamp("When the event first occurred.")
    count: int = Field(description="How often the event occurred.")
    severity: Literal[SEVERITIES] = Field(description="Severity of the code on this host.")  # type: ignore[valid-type]
    xid: int | None
    sxid: int | None
    name: str = Field(description="Short description of the code.")
    action: str = Field(description="What to do about the event.")
    if_it_recurs: str = Field(description="What to do if it occurs again.")
    detail: str = Field(description="Meaning of the numbers in the text; empty if there is none.")
    text: str = Field(description="Text of the kernel log without names and ids of processes; empty if there is none.")
    gpu: int | None = Field(description="Index of the GPU; null if the GPU is not in the inventory.")
    uuid: str | None = Field(description="UUID of the GPU, also if the GPU was last read before the host was booted.")
    pci_bus_id: str | None = Field(description="Address of the GPU, NVSwitch, adapter or PCIe port.")
    gpu_instance_id: int | None = Field(description="MIG instance of the GPU, if it is reported.")
    compute_instance_id: int | None
    sources: list[Literal[SOURCES]] = Field(description="The sources that reported it.")  # type: ignore[valid-type]
    historical: bool = Field(description="It is older than the first start of the agent; it is counted nowhere.")
    cancelled: str | None = timestamp("When another Xid ended it.")
    owners: list[str] = Field(description="Ids of the jobs, pods and others that held the GPU when it last occurred.")

    @classmethod
    def from_burst(cls, event: ErrorEvent, report: Report, stored: Sequence[Allocation] = ()) -> EventResponse:
        """Return the response. `stored`: allocations from the store, which has older ones than the Report."""
        state, meaning = None, report.catalogue.explain(event)
        if event.kind in {XID, AER}:
            same = (s for s in report.gpus if event.uuid == s.uuid or (not event.uuid and event.bus_id == s.bus_id))
            state = next(same, None)
        uuid = event.uuid or (None if state is None else state.uuid) or ""
        return cls.copied(
            event,
            owners=[owner.key for owner in report.jobs.holders(uuid, event.last.wall, stored)],
            time=rfc3339(event.last.wall),
            since=rfc3339(event.first.wall),
            severity=str(meaning.severity),
            xid=event.code if event.kind == XID else None,
            sxid=event.code if event.kind == SXID else None,
            name=meaning.name,
            action=meaning.action,
            if_it_recurs=meaning.if_it_recurs,
            detail=meaning.detail,
            text=event.text if event.code == RECOVERY_ACTION or not event.texts else event.texts[0],
            gpu=None if state is None else state.index,
            uuid=uuid or None,
            pci_bus_id=event.bus_id or None,
            sources=list(event.sources),
            cancelled=rfc3339(event.cancelled_wall),
        )


class EventsResponse(ResponseModel):
    """Stored errors that match the request."""

    events: list[EventResponse] = Field(description="Newest first.")
    complete: bool = Field(description="False: the store did not answer, and only the newest errors were searched.")


def newest_first(
    report: Report, events: Sequence[ErrorEvent], stored: Sequence[Allocation] = ()
) -> list[EventResponse]:
    """Return the responses of bursts of errors, newest first. `events` is ordered oldest first."""
    return [EventResponse.from_burst(event, report, stored) for event in reversed(events)]


class AuditEntryResponse(ResponseModel):
    """One request to change the state of the agent or to start work, which may have failed (see `status`)."""

    time: Timestamp | None = timestamp("When the request was answered.", attribute="wall")
    request: str = Field(description="Method and path with parameters, the signal, or the marker file.")
    reason: str = Field(description="Reason or note that the client gave; empty without one.")
    client: str = Field(description="`local` for the unix socket, `signal`, `marker`, else the address.")
    uid: int | None = Field(description="User of a local client, or owner of the marker file; else null.")
    login_uid: int | None = Field(description="User who logged in to the session of a local client, also after sudo.")
    status: int | None = Field(description="HTTP status of the answer; null for a signal or the marker file.")


class AuditResponse(ResponseModel):
    """Requests to change the state of the agent or to start work, newest first.

    These are the authorized HTTP requests other than GET, HEAD and OPTIONS, whatever the status of the answer, SIGHUP,
    and uses of the marker file.
    """

    entries: list[AuditEntryResponse]


NODE_STATES = ("ok", "unknown", "warning", "critical")


class ProblemResponse(ResponseModel):
    """One current problem of the node."""

    severity: Literal[SEVERITIES]  # type: ignore[valid-type]
    title: str
    detail: str
    action: str = Field(description="What to do about the problem.")
    runbook_url: str
    gpu: int | None = Field(description="Index of the GPU, if the problem is one of a GPU.")
    since: Timestamp | None = timestamp("When the problem began.")


class NoticeResponse(ResponseModel):
    """One problem of the agent itself."""

    subject: str
    message: str


@metric_rows(node.Build)
class BuildResponse(ResponseModel):
    """Version of the agent."""


@metric_rows(node.Driver)
class DriverResponse(ResponseModel):
    """Versions of the driver."""


@metric_rows(node.Node)
class NodeResponse(ResponseModel):
    """The state of the node and of the agent."""

    host: str
    time: str = timestamp("Time of this response.")
    state: Literal[NODE_STATES] = Field(  # type: ignore[valid-type]
        description="Severity of the worst problem; unknown if there is none and no check has run since the start."
    )
    problems: list[ProblemResponse] = Field(description="Current problems, the worst first.")
    notices: list[NoticeResponse]
    simulated_profile: str | None = Field(description="Profile of a simulated node; null on real GPUs.")
    excluded: list[str] = Field(description="PCI addresses of GPUs that the configuration excludes.")
    releases: list[ReleaseWindowResponse] = Field(description="Releases that are active.")
    maintenance: MaintenanceResponse | None = Field(
        description="Maintenance in force, in which no alert pages; null without."
    )
    started: str = timestamp("When the agent started.")
    booted: str = timestamp("When the host was booted.")
    build: BuildResponse
    driver: DriverResponse

    @classmethod
    def from_report(cls, report: Report, now: HostTime) -> NodeResponse:
        node_problems = problems(report)
        releases = in_force(report.windows, WindowKind.RELEASE)
        return cls(
            host=now.host,
            time=rfc3339(now.wall),
            state=worst(node_problems, evaluated=report.health.evaluated is not None),
            problems=[ProblemResponse.model_validate(problem) for problem in node_problems],
            notices=[NoticeResponse(subject=subject, message=text) for subject, text in report.notices.items()],
            simulated_profile=report.simulated,
            excluded=list(report.excluded),
            releases=[ReleaseWindowResponse.from_window(window, report, now) for window in releases],
            maintenance=MaintenanceResponse.from_report(report),
            started=rfc3339(report.started),
            booted=rfc3339(round(now.wall - now.boot)),
            build=BuildResponse(**row_values(report.build)),
            driver=DriverResponse(**row_values(report.driver)),
            **row_values(report.node),
        )


class Part(NamedTuple):
    """A row of the table of the parts of the report, in which the sections of the Report show their state."""

    kind: Any
    """Type of the part: a response model, a frozen dataclass, or a list of one of them."""
    make: Callable[[Report, HostTime], Any]


PARTS: Mapping[str, Part] = {
    "node": Part(NodeResponse, NodeResponse.from_report),
    "gpus": Part(list[GpuResponse], lambda report, _: GpusResponse.from_report(report).gpus),
    "links": Part(list[NvlinkResponse], lambda report, _: NvlinksResponse.from_report(report).links),
    "ports": Part(list[PortResponse], lambda report, _: PortsResponse.from_report(report).ports),
    "jobs": Part(JobsResponse, lambda report, _: JobsResponse.from_report(report)),
    "health": Part(HealthResponse, lambda report, now: HealthResponse.from_report(report, now.boot)),
    "alerts": Part(list[AlertResponse], lambda report, _: report.alerts),
    "events": Part(list[EventResponse], lambda report, _: newest_first(report, report.events)),
    "probe": Part(ProbeResponse, ProbeResponse.from_report),
    "probes": Part(list[RunResponse], lambda report, _: report.probe.results[::-1]),
}


@with_fields({name: (part.kind, ...) for name, part in PARTS.items()})
class ReportResponse(ResponseModel):
    """The whole report of the node. All its fields describe the same moment."""

    @classmethod
    def from_report(cls, report: Report, now: HostTime) -> Self:
        return cls(**{name: part.make(report, now) for name, part in PARTS.items()})
