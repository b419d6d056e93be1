"""What the agent knows of each simulated node, polled in this process: for the reference page and the golden pages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import pynvml

from gpumon.clock import boot_clock
from gpumon.collectors.links.infiniband import PortReader
from gpumon.collectors.links.processes import ProcessReader
from gpumon.collectors.links.services import ServiceReader
from gpumon.collectors.nvml.gpm import MIN_SECONDS
from gpumon.collectors.nvml.library import Library
from gpumon.collectors.nvml.poll import NodePoll, start
from gpumon.model import call_progress
from gpumon.model.node import Build
from gpumon.model.now import Now
from gpumon.model.reading import Table, rows
from gpumon.model.snapshot import GpuReading, LinksSnapshot, PciBus, Snapshot
from gpumon.outputs.prometheus import TABLES
from gpumon.probe.core.metrics import INITIAL
from gpumon.probe.core.state import ProbeState
from gpumon.sim.infiniband import open_tree
from gpumon.sim.library import SimulatedNode, open_node
from gpumon.sim.profiles import PROFILES
from gpumon.state.messages import StoredState, Tick, VerdictTransitions
from gpumon.state.reduce import reduce
from gpumon.state.report import Report
from gpumon.state.settings import ReducerSettings

BUILD = Build(version="0.1.0", python="3.11.7", revision="000000000000")
AT, WALL = 200.0, 1.7e9
"""After the node's beginning, when a job runs; and the time of day."""
PATIENCE = 3600.0
"""Seconds in which no poll is slow and none is late, however busy this host is."""

Row = tuple[type[Table], str]
"""A table and the name of one of its rows."""


def of_gpus() -> tuple[Row, ...]:
    """All rows that a GPU may have or not."""
    return tuple((table, name) for table in TABLES if "gpu" in table.LABELS for name in rows(table))


def read_on() -> Mapping[str, frozenset[Row]]:
    """By profile: the rows that its first GPU has a value for."""
    return {profile: frozenset(_valued(report_of(profile))) for profile in PROFILES}


def _valued(report: Report) -> Iterator[Row]:
    for table, labels in report.tables():
        if dict(labels).get("gpu") == "0":
            yield from ((type(table), name) for name in rows(type(table)) if getattr(table, name) is not None)


@cache
def report_of(profile: str, scenario: Path | None = None) -> Report:
    """Two polls of everything, folded at fixed moments; what depends on the clocks of this run is fixed as well.

    Made once: a scenario that has been read is not read again.
    """
    terms = ReducerSettings()
    first = Report(started=0.0, simulated=profile, build=BUILD, probe=ProbeState(metrics=INITIAL))
    report, clock = first, [AT]
    with _simulated(profile, scenario, clock) as node:
        library = Library(call_progress.Writer(call_progress.create()))
        status = start(library)
        parts: list[Snapshot] = []
        poll = NodePoll(
            library,
            status.driver or "",
            bus=node.pci_functions,
            leave_aside=(),
            interval=PATIENCE,
            patience=PATIENCE,
            partial=parts.append,
        )
        for arrival in (PciBus(functions=node.pci_functions()), status):
            report = reduce(report, arrival, _moment(AT), terms)
        for clock[0] in (AT, AT + 1):
            parts.clear()
            poll._due = dict.fromkeys(poll._due, 0.0)  # all tiers, without waiting for them
            last = poll.poll()
            for slot in poll._slots.values():  # nor is one that cannot be opened tried again, however long that took
                slot.retry_at = max(slot.retry_at, slot.retry_at and boot_clock() + PATIENCE)
            for seen in (_fixed((*parts, last), clock[0]), _links_seen(profile, scenario, clock[0])):
                report = reduce(report, seen, _moment(clock[0]), terms)
            time.sleep(1.1 * MIN_SECONDS)  # performance monitoring goes by a clock of this host
    return _judged(report, _moment(clock[0]), terms)


def _judged(report: Report, now: Now, terms: ReducerSettings) -> Report:
    """With the verdicts that need not last to be one."""
    for arrival in (StoredState(), Tick()):
        report = reduce(report, arrival, now, terms)
    report = reduce(report, VerdictTransitions(transitions=report.health.due), now, terms)
    return replace(report, node=replace(report.node, exposed_series=None, alerts=None))


def _links_seen(profile: str, scenario: Path | None, now: float) -> LinksSnapshot:
    tree = open_tree(profile, scenario=scenario, epoch=0.0, clock=lambda: now)
    ports, services = PortReader(lambda _: tree), ServiceReader(lambda _: tree, lambda _: tree)
    processes = ProcessReader(lambda _: tree, clock=lambda: now)
    return LinksSnapshot(
        ended_at=now,
        ports=ports.poll(counting=True),
        services=services.poll(),
        stuck=processes.poll(),
        contained=processes.contained,
    )


def _moment(at: float) -> Now:
    return Now(at, WALL + at - AT, at)


def _fixed(parts: Sequence[Snapshot], at: float) -> Snapshot:
    """One snapshot of them all, exactly a second after the one before."""
    last, gpus = parts[-1], tuple(_after_a_second(gpu) for part in parts for gpu in part.gpus)
    return replace(last, gpus=gpus, ended_at=at, wall=_moment(at).wall, durations=dict.fromkeys(last.durations, 0.01))


def _after_a_second(seen: GpuReading) -> GpuReading:
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
def _simulated(profile: str, scenario: Path | None, clock: list[float]) -> Iterator[SimulatedNode]:
    """The node below pynvml, and things put back."""
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
