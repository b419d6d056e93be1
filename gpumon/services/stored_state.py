"""Reads the stored state when the agent starts, and writes the Report once the store can be written after a failure.

`write` runs inside the caller's SQLite transaction. `read` runs in none, before any queued read or write.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from gpumon.health.node_health import MAX_SIGNIFICANT, MAX_TRANSITIONS
from gpumon.health.verdict import VerdictTransition
from gpumon.model.error_event import SXID, XID, ErrorCounter
from gpumon.probe.core.result import ProbeCounters
from gpumon.probe.core.state import MAX_COMPLETED_RUNS, MAX_RESULTS
from gpumon.state.error_section import MAX_EVENTS
from gpumon.state.messages import StoredState
from gpumon.state.report import Report
from gpumon.store import error_events, probe_runs, records, verdicts
from gpumon.store.stored_rows import StoreTable

MAX_AGENT_RUNS = 50
"""Maximum number of runs of the agent (from start to stop) to read from the store, the newest first."""


def read(connection: sqlite3.Connection) -> StoredState:
    """Return what the Report keeps of the store: of histories only the newest rows."""
    return StoredState(
        counters=error_events.read_counters(connection),
        events=error_events.read_recent(connection, MAX_EVENTS),
        position=error_events.read_position(connection),
        gpus=records.read_gpus(connection),
        ports=records.read_ports(connection),
        accepted=records.accepted_count(connection) is not None,
        verdicts=verdicts.read_open(connection),
        transitions=_transitions(connection),
        cleared=verdicts.read_last_cleared(connection),
        pending=verdicts.read_pending(connection),
        agent_runs=records.read_agent_runs(connection, MAX_AGENT_RUNS),
        windows=records.read_windows(connection),
        notified=records.read_notified(connection),
        probe_results=probe_runs.read_recent(connection, newest=MAX_RESULTS, each=MAX_COMPLETED_RUNS),
        probe_counters=probe_runs.read_counters(connection),
    )


def rows(stored: StoredState) -> Mapping[StoreTable[Any], Sequence[Any]]:
    """Return the stored rows of those tables for which WriteBehind keeps the rows last submitted, by table."""
    positions = [] if stored.position is None else [stored.position]
    return {
        records.GPUS: stored.gpus,
        records.PORTS: stored.ports,
        records.AGENT_RUNS: stored.agent_runs,
        records.WINDOWS: stored.windows,
        error_events.POSITION: positions,
    }


def write(connection: sqlite3.Connection, report: Report, rows: Mapping[StoreTable[Any], Sequence[Any]]) -> None:
    """Write these rows, and the events, verdicts, probe results, counters and accepted inventory in the Report.

    Writing what the store already has changes nothing.
    """
    for table, table_rows in rows.items():
        table.put(connection, table_rows)
    error_events.restore(connection, report.events, _error_counters(report))
    history = (*report.health.cleared.values(), *report.health.history)
    verdicts.restore(connection, report.health.open.values(), history)
    probe_runs.restore(connection, report.probe.results, _probe_counters(report))
    if report.inventory.accepted:
        records.accept_gpus(connection, report.inventory.learned, ())


def _transitions(connection: sqlite3.Connection) -> tuple[VerdictTransition, ...]:
    """Return the newest transitions of verdicts, and before them those older ones that later evaluations still need."""
    newest = verdicts.read_transitions(connection, MAX_TRANSITIONS)
    significant = verdicts.read_transitions(connection, MAX_SIGNIFICANT, significant=True)
    identities = {_identity(transition) for transition in newest}
    return (*[transition for transition in significant if _identity(transition) not in identities], *newest)


def _identity(transition: VerdictTransition) -> tuple[object, ...]:
    return transition.verdict.key, transition.change, transition.time.wall


def _error_counters(report: Report) -> list[ErrorCounter]:
    counted = {XID: report.errors.xids, SXID: report.errors.sxids}
    return [
        ErrorCounter(kind=kind, device=device, code=int(code), count=int(count), last_wall=last)
        for kind, devices in counted.items()
        for device, codes in devices.items()
        for code, (count, last) in codes.items()
    ]


def _probe_counters(report: Report) -> Mapping[str, ProbeCounters]:
    return {
        probe: ProbeCounters(
            outcomes={outcome: int(count) for outcome, count in (metrics.runs_total or {}).items()},
            reasons={reason: int(count) for reason, count in (metrics.skips_total or {}).items()},
        )
        for probe, metrics in report.probe.metrics.items()
    }
