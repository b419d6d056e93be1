"""Tests of maintenance in the report: alerts, verdicts, the metric, stored windows, and the log."""

from __future__ import annotations

import logging
from dataclasses import replace

from changed_report import changed
from reduced_reports import healthy, log_lines, reduce_all, xid79_verdict
from sample_windows import MAINTENANCE, window

from gpumon.health.alert import FIRING
from gpumon.health.verdict import VerdictChange, VerdictTransition
from gpumon.model.instant import Instant
from gpumon.model.time_window import TimeWindow, WindowsEnded
from gpumon.state.gpu_inventory import GpuInventory
from gpumon.state.messages import StoredState, Tick, VerdictTransitions
from gpumon.state.report import Report

AT = 100.0
WALL = 1e9 + AT
"""The time at which `reduce_all` applies messages."""


def maintenance(seconds: float = 60.0, start: float = WALL) -> TimeWindow:
    return window(MAINTENANCE, start=start, start_at=AT, seconds=seconds, reason="new power supply")


def end(report: Report) -> WindowsEnded:
    return WindowsEnded(ids=frozenset(active.id for active in report.windows), by="api", time=Instant("", AT, WALL))


def failed_node() -> Report:
    """Return a report of a node whose GPU 1 has fallen off the bus."""
    raised = VerdictTransition(verdict=xid79_verdict("GPU-1"), change=VerdictChange.RAISED, time=Instant("", AT, WALL))
    recalled = reduce_all(StoredState(), report=healthy())
    return reduce_all(VerdictTransitions(transitions=(raised,)), Tick(), report=recalled)


def firing(report: Report) -> list[str]:
    return [alert.rule for alert in report.alerts if alert.state == FIRING]


def test_alerts_are_inhibited_during_maintenance_and_fire_again_after_it() -> None:
    """Alerts fire again after a request or at the deadline; the verdict stays open all the time."""
    before = failed_node()
    assert "GpuXidCritical" in firing(before)
    during = reduce_all(maintenance(), Tick(), report=before)
    assert firing(during) == []
    assert during.health.open.keys() == before.health.open.keys()
    for after in (
        reduce_all(end(during), Tick(), report=during),
        reduce_all(Tick(), report=during, at=AT + 61),
    ):
        assert after.maintenance is None
        assert "GpuXidCritical" in firing(after)


def test_transitions_during_maintenance_are_muted() -> None:
    """Transitions during maintenance are muted, so that the node score and the scheduler ignore them."""
    during = reduce_all(StoredState(), maintenance(), report=healthy())
    down = tuple(replace(state, fault="lost") for state in during.gpus)
    records = {bus_id: replace(gpu, fault="lost") for bus_id, gpu in during.inventory.gpus.items()}
    report = reduce_all(Tick(), report=changed(during, inventory=GpuInventory(gpus=records), gpus=down))
    lost = [transition for transition in report.health.due if transition.verdict.check == "gpu_lost"]
    assert len(lost) == 3
    assert all(transition.muted for transition in lost)


def test_the_metric_is_absent_until_the_store_is_read() -> None:
    """The metric is absent until the store is read; then it is the end time, or 0."""
    started = reduce_all(Tick())
    assert started.node.maintenance_end_timestamp_seconds is None
    recalled = reduce_all(StoredState(windows=(maintenance(),)), report=started)
    assert recalled.node.maintenance_end_timestamp_seconds == WALL + 60
    assert reduce_all(Tick(), report=recalled, at=AT + 61).node.maintenance_end_timestamp_seconds == 0


def test_a_window_started_before_the_store_is_read_replaces_the_stored_one() -> None:
    report = reduce_all(maintenance(start=WALL + 5), StoredState(windows=(maintenance(),)), report=healthy())
    assert [active.ended for active in report.windows] == [WALL + 5, None]


def test_start_and_end_of_maintenance_are_logged_once() -> None:
    """The log reports start, end, and continuation after a restart once."""
    healthy_report = reduce_all(StoredState(), report=healthy())
    during = reduce_all(maintenance(), report=healthy_report)
    asked = reduce_all(end(during), report=during)
    late = reduce_all(Tick(), report=during, at=AT + 61)
    recalled = reduce_all(StoredState(windows=(maintenance(),)), report=healthy())

    assert log_lines(healthy_report, during) == [(logging.INFO, "maintenance started: no alert pages")]
    assert log_lines(during, reduce_all(Tick(), report=during)) == []
    over = [(logging.INFO, "maintenance ended")]
    assert log_lines(during, asked) == over
    assert over[0] in log_lines(during, late)
    assert log_lines(healthy(), recalled) == [(logging.INFO, "maintenance continues: no alert pages")]


def test_the_log_shows_alerts_as_inhibited_by_maintenance_and_firing_again_after_it() -> None:
    """During maintenance an alert with an open verdict is inhibited, not resolved."""
    before = failed_node()
    during = reduce_all(maintenance(), Tick(), report=before)
    after = reduce_all(Tick(), report=during, at=AT + 61)
    messages = [message for _, message in (*log_lines(before, during), *log_lines(during, after))]

    assert [message.partition(":")[0] for message in messages if message.startswith("alert")] == [
        "alert inhibited by maintenance",
        "alert firing",
    ]
