"""Polls simulated nodes in this process and returns their Report, for docs/metrics.md and for tests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import pynvml
from gpumon_sim.infiniband import open_tree
from gpumon_sim.library import SimulatedNode, open_node
from gpumon_sim.profiles import PROFILES

from gpumon.clock import boot_clock
from gpumon.collectors.host.__main__ import HostChild
from gpumon.collectors.host.reader import Trees
from gpumon.collectors.nvml.gpm import MIN_SECONDS
from gpumon.collectors.nvml.library import Library
from gpumon.collectors.nvml.poll import NodePoll, start
from gpumon.model import call_progress
from gpumon.model.instant import Now
from gpumon.model.node import Build
from gpumon.model.orders import HostOrders
from gpumon.model.reading import Table, rows
from gpumon.model.snapshot import GpuReading, HostSnapshot, PciBus, Snapshot
from gpumon.probe.core.probe_metrics import INITIAL
from gpumon.probe.core.state import ProbeState
from gpumon.state.messages import StoredState, Tick, VerdictTransitions
from gpumon.state.reduce import reduce
from gpumon.state.report import Report
from gpumon.state.section import ReducerSettings
from gpumon.state.sections import TABLES, tables

BUILD = Build(version="0.1.0", python="3.11.7", revision="000000000000")
AT, WALL = 200.0, 1.7e9
"""Seconds after the start of the node, when a job is running, and the wall time then."""
PATIENCE = 3600.0
"""Seconds: long enough that no poll is slow or late on a busy host."""

Row = tuple[type[Table], str]
"""A table and the name of one of its rows."""


def gpu_rows() -> tuple[Row, ...]:
    """Return the rows of all tables with the label gpu."""
    return tuple((table, name) for table in TABLES if "gpu" in table.LABELS for name in rows(table))


def rows_by_profile() -> Mapping[str, frozenset[Row]]:
    """Return the rows for which the first GPU of each profile has a value."""
    return {profile: frozenset(_rows_with_value(report_of(profile))) for profile in PROFILES}


def _rows_with_value(report: Report) -> Iterator[Row]:
    for table, labels in tables(report):
        if dict(labels).get("gpu") == "0":
            yield from ((type(table), name) for name in rows(type(table)) if getattr(table, name) is not None)


@cache
def report_of(profile: str, scenario: Path | None = None) -> Report:
    """Return the Report after two polls of all tiers at fixed times. What depends on the real clock is fixed too.

    The Report is cached, so a scenario is read once.
    """
    terms = ReducerSettings()
    first = Report(started=0.0, simulated=profile, build=BUILD, probe=ProbeState(metrics=INITIAL))
    report, clock = first, [AT]
    with _simulated_library(profile, scenario, clock) as node:
        library = Library(call_progress.Writer(call_progress.create()))
        status = start(library)
        parts: list[Snapshot] = []
        poll = NodePoll(
            library,
            status.driver or "",
            bus=node.pci_functions,
            do_not_open=(),
            interval=PATIENCE,
            patience=PATIENCE,
            partial=parts.append,
        )
        for arrival in (PciBus(functions=node.pci_functions(), slot_lanes=node.slot_lanes()), status):
            report = reduce(report, arrival, _moment(AT), terms)
        for clock[0] in (AT, AT + 1):
            parts.clear()
            poll._due = dict.fromkeys(poll._due, 0.0)  # all tiers are due
            last = poll.poll()
            for slot in poll._slots.values():  # no slot is opened again
                slot.retry_at = max(slot.retry_at, slot.retry_at and boot_clock() + PATIENCE)
            for seen in (_merge((*parts, last), clock[0]), _links_snapshot(profile, scenario, clock[0])):
                report = reduce(report, seen, _moment(clock[0]), terms)
            time.sleep(1.1 * MIN_SECONDS)  # GPM uses the clock of this host
    return _with_verdicts(report, _moment(clock[0]), terms)


def _with_verdicts(report: Report, now: Now, terms: ReducerSettings) -> Report:
    """Add the verdicts that need no duration."""
    for arrival in (StoredState(), Tick()):
        report = reduce(report, arrival, now, terms)
    report = reduce(report, VerdictTransitions(transitions=report.health.due), now, terms)
    node = replace(report.node, exposed_series=None, alerts=None)
    return replace(report, agent=replace(report.agent, node=node))


def _links_snapshot(profile: str, scenario: Path | None, now: float) -> HostSnapshot:
    tree = open_tree(profile, scenario=scenario, epoch=0.0, clock=lambda: now)
    orders = HostOrders(page=call_progress.create())
    return HostChild(orders, Trees(tree, tree, tree), clock=lambda: now).poll()


def _moment(at: float) -> Now:
    return Now(at, WALL + at - AT, at)


def _merge(parts: Sequence[Snapshot], at: float) -> Snapshot:
    """Merge the parts into one snapshot that follows the one before by exactly one second."""
    last, gpus = parts[-1], tuple(_scaled_to_one_second(gpu) for part in parts for gpu in part.gpus)
    return replace(last, gpus=gpus, ended_at=at, wall=_moment(at).wall, durations=dict.fromkeys(last.durations, 0.01))


def _scaled_to_one_second(seen: GpuReading) -> GpuReading:
    if not seen.watched:
        return seen

    def rate(gained: float) -> float:
        return round(gained / seen.watched, 6)

    increments = {
        name: {key: rate(one) for key, one in gained.items()} if isinstance(gained, Mapping) else rate(gained)
        for name, gained in seen.increments.items()
    }
    return replace(seen, watched=1.0, increments=increments)


@contextmanager
def _simulated_library(profile: str, scenario: Path | None, clock: list[float]) -> Iterator[SimulatedNode]:
    """Replace the library below pynvml by a simulated node, and restore it."""
    before, cached = pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache)
    node = open_node(profile, scenario=scenario, epoch=0.0, clock=lambda: clock[0])
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = node.library
    try:
        yield node
    finally:
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml._nvmlGetFunctionPointer_cache.update(cached)
