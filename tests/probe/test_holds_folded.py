"""Holds in the Report: whose are in force, what the store knew, and the log."""

from __future__ import annotations

import logging
from dataclasses import replace

from folded import healthy, said, told

from gpumon.model.hold import MOST_REMEMBERED, Hold, HoldEnded, hint, in_force
from gpumon.state.messages import StoredState, Tick
from gpumon.state.report import Report

AT = 100.0
WALL = 1e9 + AT
"""The moment at which `told` tells."""


def hold(owner: str = "", seconds: float = 60.0, began: float = 0.0, reason: str = "prolog") -> Hold:
    """`began`: before or after now."""
    return Hold(
        began=WALL + began,
        began_at=AT + began,
        until=WALL + began + seconds,
        deadline=AT + began + seconds,
        boot_id="",
        reason=reason,
        by="command",
        owner=owner,
    )


def end(owner: str) -> HoldEnded:
    return HoldEnded(owner=owner, wall=WALL, at=AT)


def owners(report: Report) -> list[str]:
    return [one.owner for one in in_force(report.holds)]


def test_each_ends_by_itself() -> None:
    """By time, or by its owner; a second one of the same owner takes the place of the first."""
    report = told(hold("1"), hold("2", 30.0), hold("3", 600.0), hold("1", 600.0, 1.0))
    assert owners(report) == ["2", "3", "1"]
    assert owners(told(Tick(), report=report, at=AT + 61)) == ["3", "1"]
    assert owners(told(end("3"), end("nobody"), report=report)) == ["2", "1"]


def test_what_the_store_knew_came_before() -> None:
    """A hold that is asked for while the store is being read takes the place of its owner's of before."""
    report = told(hold("1", 600.0), StoredState(holds=(hold("1", 60.0, -5.0), hold("2", 60.0, -4.0))))
    assert sorted((one.owner, one.seconds) for one in in_force(report.holds)) == [("1", 600.0), ("2", 60.0)]


def test_those_that_have_ended_are_forgotten_in_the_end() -> None:
    """A node that starts a job a second does not remember all of them."""
    report = told(*(arrival for n in range(100) for arrival in (hold(str(n), began=n * 1e-3), end(str(n)))))
    assert (owners(report), len(report.holds) <= MOST_REMEMBERED + 1) == ([], True)


def test_beginning_and_end_are_told_once() -> None:
    """With the owner; and of one from before the start of the agent that it goes on."""
    well = told(StoredState(), report=healthy())
    during = told(hold("1"), report=well)
    longer = told(hold("1", 90.0, 1.0), report=during)
    recalled = told(StoredState(holds=(hold("1"),)), report=healthy())
    assert said(well, during) == [(logging.INFO, "hold begins: no probe runs")]
    assert said(during, told(Tick(), report=during)) == []
    assert said(during, longer) == [(logging.INFO, "the hold is prolonged")]
    assert said(longer, told(end("1"), report=longer)) == [(logging.INFO, "the hold has ended")]
    assert (logging.INFO, "the hold has ended") in said(during, told(Tick(), report=during, at=AT + 61))
    assert said(healthy(), recalled) == [(logging.INFO, "the hold goes on")]


def test_the_hint_says_who_until_when_why_and_how_to_end_it() -> None:
    """Of several, the one that lasts longest."""
    assert hint(()) == ""
    several = (hold("4711", 900.0), hold("4712"))
    assert hint(several) == (
        "Held until 2001-09-09 02:03:20 UTC by 4711 (by command), and 1 more: prolog. "
        "Run again then, or end it with `gpumon probe unhold --owner 4711`."
    )
    alone = hint((replace(hold(), reason="", by="api"),))
    assert alone.startswith("Held until 2001-09-09 01:49:20 UTC by api. ")
    assert alone.endswith("`gpumon probe unhold`.")
