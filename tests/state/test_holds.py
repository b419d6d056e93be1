"""Tests of holds in the report: active holds, stored holds, and the log."""

from __future__ import annotations

import logging

from reduced_reports import healthy, log_lines, reduce_all
from sample_windows import HOLD, window

from gpumon.model.instant import Instant
from gpumon.model.time_window import MAX_ENDED, TimeWindow, WindowsEnded, in_force
from gpumon.state.messages import StoredState, Tick
from gpumon.state.report import Report

AT = 100.0
WALL = 1e9 + AT
"""The time at which `reduce_all` applies messages."""


def hold(owner: str = "", seconds: float = 60.0, start: float = 0.0) -> TimeWindow:
    """Return a hold that starts `start` seconds from now."""
    return window(HOLD, start=WALL + start, start_at=AT + start, seconds=seconds, owner=owner, reason="prolog")


def end(*holds: TimeWindow) -> WindowsEnded:
    return WindowsEnded(ids=frozenset(active.id for active in holds), by="command", time=Instant("", AT, WALL))


def owners(report: Report) -> list[str]:
    return [active.owner for active in in_force(report.windows)]


def test_each_hold_ends_by_itself() -> None:
    """A hold ends at its deadline or on request; a second hold of one owner replaces the first."""
    third = hold("3", 600.0)
    report = reduce_all(hold("1"), hold("2", 30.0), third, hold("1", 600.0, 1.0))
    assert owners(report) == ["2", "3", "1"]
    assert owners(reduce_all(Tick(), report=report, at=AT + 61)) == ["3", "1"]
    assert owners(reduce_all(end(third, hold("4")), report=report)) == ["2", "1"]


def test_a_new_hold_replaces_the_stored_hold_of_its_owner() -> None:
    report = reduce_all(hold("1", 600.0), StoredState(windows=(hold("1", 60.0, -5.0), hold("2", 60.0, -4.0))))
    assert sorted((active.owner, active.seconds) for active in in_force(report.windows)) == [("1", 600.0), ("2", 60.0)]


def test_ended_holds_are_limited_in_number() -> None:
    report = reduce_all()
    for number in range(100):
        short = hold(str(number), start=number * 1e-3)
        report = reduce_all(short, end(short), report=report)
    assert (owners(report), len(report.windows) <= MAX_ENDED + 1) == ([], True)


def test_start_and_end_are_logged_once() -> None:
    """The log reports once that a hold starts, ends, or continues after a restart of the agent."""
    before, first, second = reduce_all(StoredState(), report=healthy()), hold("1"), hold("1", 90.0, 1.0)
    during = reduce_all(first, report=before)
    longer = reduce_all(second, report=during)
    assert log_lines(before, during) == [(logging.INFO, "hold started: no probe runs")]
    assert log_lines(during, reduce_all(Tick(), report=during)) == []
    assert log_lines(during, longer) == [(logging.INFO, "hold replaced")]
    assert log_lines(longer, reduce_all(end(second), report=longer)) == [(logging.INFO, "hold ended")]
    assert (logging.INFO, "hold ended") in log_lines(during, reduce_all(Tick(), report=during, at=AT + 61))
    recalled = reduce_all(StoredState(windows=(first,)), report=healthy())
    assert log_lines(healthy(), recalled) == [(logging.INFO, "hold continues: no probe runs")]
