"""The table of the sections of the Report, and the metrics of all of them."""

from __future__ import annotations

from collections.abc import Iterator

from gpumon.model.allocation import AllocationInfo, AllocationUse
from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import mig_labels
from gpumon.model.infiniband import InfinibandLink, InfinibandPort, InfinibandPortInfo
from gpumon.model.job import JobMetrics
from gpumon.model.mig import Mig
from gpumon.model.node import Build, Driver, HealthMetrics, Node, VerdictInfo
from gpumon.model.nvlink import C2cLink, Fabric, Nvlink, NvlinkPeer, Platform
from gpumon.model.reading import METRICS, Labels, Sample, Table, count_series
from gpumon.model.reading import samples as samples_of
from gpumon.probe.core.probe_metrics import METRICS as PROBE_METRICS
from gpumon.state import (
    agent_section,
    error_section,
    gpu_section,
    health_section,
    host_section,
    job_section,
    probe_section,
    window_section,
)
from gpumon.state.report import Report
from gpumon.state.section import LogLine, Section

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
        "jobs", job_section.apply, (AllocationInfo, AllocationUse, JobMetrics), job_section.tables, job_section.changes
    ),
    Section(
        "agent",
        agent_section.apply,
        (Build, Node),
        lambda report: [(report.build, ()), (report.node, ())],
        agent_section.changes,
    ),
    Section("probe", probe_section.apply, tuple(PROBE_METRICS.values()), probe_section.tables),
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
