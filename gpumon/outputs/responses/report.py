"""The response of /api/v1/report: the whole report."""

from __future__ import annotations

from gpumon.outputs.responses.alerts import AlertResponse
from gpumon.outputs.responses.base import HostTime, ResponseModel
from gpumon.outputs.responses.events import EventResponse, newest_first
from gpumon.outputs.responses.gpus import GpuResponse, GpusResponse
from gpumon.outputs.responses.links import NvlinkResponse, NvlinksResponse, PortResponse, PortsResponse
from gpumon.outputs.responses.node import NodeResponse
from gpumon.outputs.responses.probes import ProbeResponse, RunResponse
from gpumon.outputs.responses.verdicts import HealthResponse
from gpumon.state.report import Report


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
