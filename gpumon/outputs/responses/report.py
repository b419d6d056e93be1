"""Responses about the node and the agent, and the whole report."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpumon.health.alert_texts import SEVERITIES
from gpumon.model import node
from gpumon.model.time_window import WindowKind, in_force
from gpumon.outputs.formatting import rfc3339
from gpumon.outputs.problems import problems, worst
from gpumon.outputs.responses.base import HostTime, ResponseModel, Timestamp, metric_rows, row_values, timestamp
from gpumon.outputs.responses.devices import (
    GpuResponse,
    GpusResponse,
    NvlinkResponse,
    NvlinksResponse,
    PortResponse,
    PortsResponse,
)
from gpumon.outputs.responses.events import EventResponse, newest_first
from gpumon.outputs.responses.health import AlertResponse, HealthResponse
from gpumon.outputs.responses.probes import ProbeResponse, RunResponse
from gpumon.outputs.responses.windows import MaintenanceResponse, ReleaseWindowResponse
from gpumon.state.report import Report

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
            state=worst(node_problems, evaluated=report.health.evaluated),
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


class ReportResponse(ResponseModel):
    """The whole report of the node. All its fields describe the same moment."""

    node: NodeResponse
    gpus: list[GpuResponse]
    links: list[NvlinkResponse]
    ports: list[PortResponse]
    health: HealthResponse
    alerts: list[AlertResponse]
    events: list[EventResponse]
    probe: ProbeResponse
    probes: list[RunResponse]

    @classmethod
    def from_report(cls, report: Report, now: HostTime) -> ReportResponse:
        return cls(
            node=NodeResponse.from_report(report, now),
            gpus=GpusResponse.from_report(report).gpus,
            links=NvlinksResponse.from_report(report).links,
            ports=PortsResponse.from_report(report).ports,
            health=HealthResponse.from_report(report, now.boot),
            alerts=[AlertResponse.model_validate(alert) for alert in report.alerts],
            events=newest_first(report, report.events),
            probe=ProbeResponse.from_report(report, now),
            probes=[RunResponse.model_validate(result) for result in reversed(report.probe.results)],
        )
