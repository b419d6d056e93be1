"""Holds in the Report: whose are in force, what the store kept, and the log."""

from __future__ import annotations

import logging

from folded import healthy, said, told
from sample_windows import HOLD, window

from gpumon.model.time_window import MAX_ENDED, TimeWindow, WindowsEnded, in_force
from gpumon.state.messages import StoredState, Tick
from gpumon.state.report import Report

AT = 100.0
WALL = 1e9 + AT
"""The moment at which `told` folds messages."""


def hold(owner: str = "", seconds: float = 60.0, start: float = 0.0) -> TimeWindow:
    """`start`: seconds from now."""
    return window(HOLD, start=WALL + start, start_at=AT + start, seconds=seconds, owner=owner, reason="prolog")


def end(*holds: TimeWindow) -> WindowsEnded:
    return WindowsEnded(ids=frozenset(one.id for one in holds), by="command", wall=WALL, at=AT)


def owners(report: Report) -> list[str]:
    return [one.owner for one in in_force(report.windows)]


def test_each_hold_ends_by_itself() -> None:
    """By its deadline or by request; a second hold of one owner replaces the first."""
    third = hold("3", 600.0)
    report = told(hold("1"), hold("2", 30.0), third, hold("1", 600.0, 1.0))
    assert owners(report) == ["2", "3", "1"]
    assert owners(told(Tick(), report=report, at=AT + 61)) == ["3", "1"]
    assert owners(told(end(third, hold("4")), report=report)) == ["2", "1"]


def test_stored_holds_are_older_than_those_of_this_life() -> None:
    """A hold that starts while the store is read replaces the stored one of its owner."""
    report = told(hold("1", 600.0), StoredState(windows=(hold("1", 60.0, -5.0), hold("2", 60.0, -4.0))))
    assert sorted((one.owner, one.seconds) for one in in_force(report.windows)) == [("1", 600.0), ("2", 60.0)]


def test_holds_that_have_ended_are_forgotten() -> None:
    """A node that starts one job a second does not keep all of them."""
    report = told()
    for number in range(100):
        one = hold(str(number), start=number * 1e-3)
        report = told(one, end(one), report=report)
    assert (owners(report), len(report.windows) <= MAX_ENDED + 1) == ([], True)


def test_start_and_end_are_logged_once() -> None:
    """And that a stored hold continues after a start of the agent."""
    before, first, second = told(StoredState(), report=healthy()), hold("1"), hold("1", 90.0, 1.0)
    during = told(first, report=before)
    longer = told(second, report=during)
    assert said(before, during) == [(logging.INFO, "hold started: no probe runs")]
    assert said(during, told(Tick(), report=during)) == []
    assert said(during, longer) == [(logging.INFO, "hold replaced")]
    assert said(longer, told(end(second), report=longer)) == [(logging.INFO, "hold ended")]
    assert (logging.INFO, "hold ended") in said(during, told(Tick(), report=during, at=AT + 61))
    recalled = told(StoredState(windows=(first,)), report=healthy())
    assert said(healthy(), recalled) == [(logging.INFO, "hold continues: no probe runs")]
