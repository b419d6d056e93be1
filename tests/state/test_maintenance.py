"""Maintenance in the Report: alerts, verdicts, the metric, what the store kept, and the log."""

from __future__ import annotations

import logging
from dataclasses import replace

from folded import fallen, healthy, said, told
from sample_windows import MAINTENANCE, window

from gpumon.health.alert import FIRING
from gpumon.health.verdict import VerdictChange, VerdictTransition
from gpumon.model.time_window import TimeWindow, WindowsEnded
from gpumon.state.gpu_inventory import GpuInventory
from gpumon.state.messages import StoredState, Tick, VerdictTransitions
from gpumon.state.report import Report

AT = 100.0
WALL = 1e9 + AT
"""The moment at which `told` folds messages."""


def maintenance(seconds: float = 60.0, start: float = WALL) -> TimeWindow:
    return window(MAINTENANCE, start=start, start_at=AT, seconds=seconds, reason="new power supply")


def end(report: Report) -> WindowsEnded:
    return WindowsEnded(ids=frozenset(one.id for one in report.windows), by="api", wall=WALL, at=AT)


def wrong() -> Report:
    """A node whose GPU 1 has fallen off the bus."""
    raised = VerdictTransition(verdict=fallen("GPU-1"), change=VerdictChange.RAISED, wall=WALL, at=AT, boot_id="")
    known = told(StoredState(), report=healthy())
    return told(VerdictTransitions(transitions=(raised,)), Tick(), report=known)


def firing(report: Report) -> list[str]:
    return [alert.rule for alert in report.alerts if alert.state == FIRING]


def test_what_fires_resolves_when_it_begins_and_fires_again_when_it_ends() -> None:
    """By request or because its time is up; the verdict stays all the while."""
    before = wrong()
    assert "GpuXidCritical" in firing(before)
    during = told(maintenance(), Tick(), report=before)
    assert firing(during) == []
    assert during.health.open.keys() == before.health.open.keys()
    for after in (
        told(end(during), Tick(), report=during),
        told(Tick(), report=during, at=AT + 61),
    ):
        assert after.maintenance is None
        assert "GpuXidCritical" in firing(after)


def test_what_is_ruled_in_it_is_muted() -> None:
    """So that the score of the node, and a scheduler, can leave it out."""
    during = told(StoredState(), maintenance(), report=healthy())
    down = tuple(replace(state, fault="lost") for state in during.gpus)
    memory = replace(
        during.internal,
        inventory=GpuInventory(
            gpus={bus_id: replace(gpu, fault="lost") for bus_id, gpu in during.internal.inventory.gpus.items()}
        ),
    )
    report = told(Tick(), report=replace(during, gpus=down, internal=memory))
    lost = [transition for transition in report.health.due if transition.verdict.check == "gpu_lost"]
    assert len(lost) == 3
    assert all(transition.muted for transition in lost)


def test_the_metric_is_absent_until_the_store_has_told() -> None:
    """0 would say that the one from before the restart has ended; then it is the end, or 0."""
    started = told(Tick())
    assert started.node.maintenance_end_timestamp_seconds is None
    known = told(StoredState(windows=(maintenance(),)), report=started)
    assert known.node.maintenance_end_timestamp_seconds == WALL + 60
    assert told(Tick(), report=known, at=AT + 61).node.maintenance_end_timestamp_seconds == 0


def test_what_was_begun_before_the_store_could_be_read_came_later() -> None:
    """The one that the store knew has ended with that."""
    report = told(maintenance(start=WALL + 5), StoredState(windows=(maintenance(),)), report=healthy())
    assert [one.ended for one in report.windows] == [WALL + 5, None]


def test_beginning_and_end_are_told_once() -> None:
    """And that one from before the start goes on."""
    well = told(StoredState(), report=healthy())
    during = told(maintenance(), report=well)
    asked = told(end(during), report=during)
    late = told(Tick(), report=during, at=AT + 61)
    recalled = told(StoredState(windows=(maintenance(),)), report=healthy())

    assert said(well, during) == [(logging.INFO, "maintenance started: no alert pages")]
    assert said(during, told(Tick(), report=during)) == []
    over = [(logging.INFO, "maintenance ended")]
    assert said(during, asked) == over
    assert over[0] in said(during, late)
    assert said(healthy(), recalled) == [(logging.INFO, "maintenance continues: no alert pages")]


def test_the_log_shows_alerts_as_inhibited_by_maintenance_and_firing_again_after_it() -> None:
    """An alert whose verdict is still open is not resolved."""
    before = wrong()
    during = told(maintenance(), Tick(), report=before)
    after = told(Tick(), report=during, at=AT + 61)
    messages = [message for _, message in (*said(before, during), *said(during, after))]

    assert [message.partition(":")[0] for message in messages if message.startswith("alert")] == [
        "alert inhibited by maintenance",
        "alert firing",
    ]
