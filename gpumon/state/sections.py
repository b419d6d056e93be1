"""The table of the sections of the Report, and the metrics of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import mig_labels
from gpumon.model.infiniband import InfinibandLink, InfinibandPort, InfinibandPortInfo
from gpumon.model.mig import Mig
from gpumon.model.node import Build, Driver, HealthMetrics, Node, VerdictInfo
from gpumon.model.nvlink import C2cLink, Fabric, Nvlink, NvlinkPeer, Platform
from gpumon.model.reading import METRICS, Labels, Sample, Table, count_series
from gpumon.model.reading import samples as samples_of
from gpumon.probe.core import state as probe_state
from gpumon.probe.core.frames import Progress
from gpumon.probe.core.probe_metrics import METRICS as PROBE_METRICS
from gpumon.probe.core.result import ProbeResult
from gpumon.probe.core.state import ProbeState
from gpumon.state import (
    agent_section,
    error_section,
    gpu_section,
    health_section,
    host_section,
    window_section,
)
from gpumon.state.messages import AgentStatus, ProbeStarted, StoredState
from gpumon.state.report import Report
from gpumon.state.section import LogLine, Section, Step

Tables = Iterator[tuple[Table, Labels]]


def _health_tables(report: Report) -> Tables:
    yield report.health_metrics(), ()
    yield from report.verdict_infos()


def _gpu_tables(report: Report) -> Tables:
    """Yield the metrics of the driver and of each GPU, its fabric, platform and MIG instances; then those of links."""
    yield report.driver, ()
    for state in report.gpus:
        yield state.gpu, state.labels
        for part in (state.fabric, state.platform):
            if part is not None:
                yield part, state.labels
        for mig in state.migs:
            yield mig.mig, (*state.labels, *mig_labels(mig))
    for state in report.gpus:
        labels = state.labels
        for links in (state.links, state.peers, state.c2c_links):
            for link, table in links.items():
                yield table, (*labels, ("link", link))


def _port_tables(report: Report) -> Tables:
    for port in report.ports:
        named = (("device", port.device), ("port", port.port))
        yield report.port_info(port), named
        yield port.link, (*named, ("link_layer", port.link_layer))
        yield port.counts, named


def _probe_tables(report: Report) -> Tables:
    """Yield the metrics of each probe; without the counters that the store may hold, until it was read or failed."""
    counted = report.agent.restored or report.node.store_up == 0
    for metrics in report.probe.metrics.values():
        yield metrics if counted else replace(metrics, runs_total=None, skips_total=None), ()


def _apply_probe(probe: ProbeState, step: Step) -> ProbeState:
    """Return the state of the probes after a message."""
    match step.message:
        case ProbeStarted(id=id, probe=name, gpus=gpus):
            return probe_state.begin_run(probe, id, name, gpus)
        case Progress():
            return replace(probe, progress=step.message)
        case ProbeResult():
            return probe_state.end_run(probe, step.message, at=step.now.at, uptime=step.now.uptime)
        case StoredState(probe_results=results, probe_counters=counters):
            return probe_state.restore(probe, results, counters)
        case AgentStatus(next_probes=next_runs, probe_unkillable=unkillable):
            return replace(probe, next_runs=next_runs, unkillable=unkillable)
    return probe


SECTIONS = (
    Section("windows", window_section.apply, changes=window_section.changes),
    Section("errors", error_section.apply, changes=error_section.changes),
    Section("health", health_section.apply, (HealthMetrics, VerdictInfo), _health_tables, health_section.changes),
    Section(
        "inventory",
        gpu_section.apply,
        (Driver, Gpu, Mig, Fabric, Platform, Nvlink, NvlinkPeer, C2cLink),
        _gpu_tables,
        gpu_section.changes,
    ),
    Section(
        "host",
        host_section.apply,
        (InfinibandPortInfo, InfinibandLink, InfinibandPort),
        _port_tables,
        host_section.changes,
    ),
    Section(
        "agent",
        agent_section.apply,
        (Build, Node),
        lambda report: [(report.build, ()), (report.node, ())],
        agent_section.changes,
    ),
    Section("probe", _apply_probe, tuple(PROBE_METRICS.values()), _probe_tables),
)
"""The sections, in the order in which a message is applied to them. A section may read those before it."""

TABLES = tuple(kind for section in SECTIONS for kind in section.kinds)
"""All metric tables. The pages export their metrics in this order."""


def tables(report: Report) -> Tables:
    """Yield every metric table, with the labels that all series of the table have."""
    for section in SECTIONS:
        yield from section.tables(report)


def samples(report: Report, names: frozenset[str] | None = None) -> Iterator[Sample]:
    """Yield the values of the metric tables, or of the metrics `names`; detailed ones only if `Report.detailed`."""
    for table, labels in tables(report):
        yield from samples_of(table, labels, detailed=report.detailed, names=names)


def series_count(report: Report) -> int:
    """Return the number of series on /metrics."""
    return sum(count_series(table, METRICS, detailed=report.detailed) for table, _ in tables(report))


def changes(before: Report, after: Report) -> Iterator[LogLine]:
    """Yield the log lines for what changed from one Report to the next."""
    for section in SECTIONS:
        yield from section.changes(before, after)
