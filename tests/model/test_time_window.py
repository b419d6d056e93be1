"""The rules about time windows: on the boot clock within a boot, on the wall clock across a reboot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_windows import HOLD, MAINTENANCE, RELEASE, window

from gpumon.model.instant import Instant, Now
from gpumon.model.time_window import (
    DEADLINE,
    MARKER,
    MAX_ENDED,
    MAX_OWNER_LENGTH,
    MAX_REASON_LENGTH,
    NODE,
    REBOOT,
    REPLACED,
    SETTLED_SECONDS,
    STEP_SECONDS,
    TimeWindow,
    WindowKind,
    Windows,
    WindowSelection,
    WindowsEnded,
    advance,
    duration_problem,
    end,
    hold_hint,
    in_force,
    last_to_end,
    owner_problem,
    reason_problem,
    released_scopes,
    start,
)

START, HOUR, UPTIME = 1e9, 3600.0, 5000.0


def hour(start: float = START, kind: WindowKind = MAINTENANCE, **attributes: str) -> TimeWindow:
    """Return a window of one hour that starts in boot `a`, at an uptime of UPTIME."""
    start_at = UPTIME + start - START
    return window(kind, start=start, start_at=start_at, seconds=HOUR, boot_id="a", reason="new PSU", **attributes)


def after(seconds: float, *, stepped: float = 0.0, booted: float | None = None) -> Now:
    """Return the moment so long after the start. `booted`: seconds from the start to the second boot."""
    at = UPTIME + seconds if booted is None else seconds - booted
    return Now(at=at, wall=START + seconds + stepped, uptime=at)


def end_all(windows: Windows, seconds: float) -> Windows:
    """End all windows by request, so long after START."""
    ids = frozenset(each.id for each in windows)
    return end(windows, WindowsEnded(ids=ids, by="api", time=Instant("", UPTIME + seconds, START + seconds)))


def test_a_window_is_in_force_until_its_deadline() -> None:
    """It ends at the deadline, however late the next poll is."""
    one = hour()
    windows = advance((one,), after(HOUR - 1), "a")
    assert in_force(windows) == (one,)
    (over,) = advance(windows, after(HOUR + 250), "a")
    assert (in_force((over,)), over.ended, over.ended_by) == ((), START + HOUR, DEADLINE)


@given(st.floats(-1e8, 1e8), st.floats(0, 2 * HOUR))
def test_a_step_of_the_wall_clock_does_not_move_the_deadline(stepped: float, seconds: float) -> None:
    """Within one boot. `until`, which is for display, follows the wall clock."""
    windows = advance((hour(),), after(seconds, stepped=stepped), "a")
    assert bool(in_force(windows)) == (seconds < HOUR)
    if seconds < HOUR:
        assert windows[-1].deadline.wall == pytest.approx(START + HOUR + stepped, abs=1.1)


REBOOTED = 580
"""Seconds from the start to the second boot."""
LEFT = HOUR - REBOOTED


def states(one: TimeWindow, *polls: tuple[float, float]) -> list[bool]:
    """Return whether the window is in force at each poll: uptime of the second boot, and error of its wall clock."""
    windows: Windows = (one,)
    in_force_at_polls = []
    for uptime, error in polls:
        windows = advance(windows, after(REBOOTED + uptime, stepped=error, booted=REBOOTED), "b")
        in_force_at_polls.append(bool(in_force(windows)))
    return in_force_at_polls


def test_across_a_reboot_the_wall_clock_decides_once() -> None:
    """After that no step of the wall clock moves the deadline."""
    steps = ((30, 0.0), (39, -86_400.0), (LEFT - 1, 86_400.0), (LEFT + 1, -86_400.0))
    assert states(hour(), *steps) == [True, True, True, False]
    assert states(hour(), (LEFT + 1, 0.0)) == [False]


@given(st.floats(-START, 1e8), st.floats(1, SETTLED_SECONDS - 1))
def test_a_wall_clock_that_is_wrong_until_it_is_set_does_not_move_the_deadline(error: float, late: float) -> None:
    """Except if the wrong time lies within the window."""
    if not -REBOOTED - late - STEP_SECONDS <= error <= LEFT:
        polls = ((1.0, error), (late, error), (late + 1, 0.0), (LEFT - 1, 0.0), (LEFT + 1, 0.0))
        assert states(hour(), *polls) == [True, True, True, True, False]


def test_a_wall_clock_that_is_never_set_prolongs_a_window_by_its_length_at_most() -> None:
    """After a boot in 1970 the length counts from the boot."""
    assert states(hour(), (20, -START), (HOUR - 1, -START), (HOUR + 1, -START)) == [True, True, False]
    assert states(hour(), (HOUR + 1, -START)) == [False]


def test_a_wall_clock_past_the_end_is_trusted_after_ten_minutes() -> None:
    """The host was down for a year, or its clock has not been set yet."""
    year = 365 * 86_400.0
    assert states(hour(), (20, year), (SETTLED_SECONDS - 1, year), (SETTLED_SECONDS, year)) == [True, True, False]


def test_the_length_is_right_if_the_wall_clock_was_wrong_at_the_start() -> None:
    """A window that started in 1970, before NTP stepped the clock, does not last for years after a boot in 1970."""
    (one,) = advance(
        (
            replace(
                hour(),
                started=hour().started._replace(wall=12.0),
                deadline=hour().deadline._replace(wall=12.0 + HOUR),
            ),
        ),
        after(10),
        "a",
    )
    assert one.deadline.wall == pytest.approx(START + HOUR)
    assert states(one, (20, -START), (HOUR + 1, -START)) == [True, False]
    assert states(one, (20, 0.0), (LEFT + 1, 0.0)) == [True, False]


def test_a_reboot_ends_a_release_only() -> None:
    """The driver was unloaded by the reboot."""
    windows = (hour(), hour(kind=HOLD), hour(kind=RELEASE))
    after_reboot = advance(windows, after(REBOOTED + 5, booted=REBOOTED), "b")
    assert [each.kind for each in in_force(after_reboot)] == [MAINTENANCE, HOLD]
    assert (after_reboot[2].ended, after_reboot[2].ended_by) == (START + REBOOTED + 5, REBOOT)


def test_a_new_window_replaces_the_one_in_its_slot() -> None:
    """A slot is a kind, a scope, an owner, and whether the marker file asks. Only the newest that ended are kept."""
    others = (hour(kind=RELEASE), hour(kind=RELEASE, bus_id="b"), hour(kind=RELEASE, by=MARKER), hour(kind=HOLD))
    one = hour(START + 60, RELEASE)
    windows = start(others, one)
    assert in_force(windows) == (*others[1:], one)
    assert (windows[0].ended, windows[0].ended_by) == (START + 60, REPLACED)
    for number in range(2, 3 * MAX_ENDED):
        windows = start(windows, hour(START + 60 * number, RELEASE))
    assert len(windows) == len(in_force(windows)) + MAX_ENDED == 4 + MAX_ENDED


def test_a_window_ends_once_and_not_after_its_deadline() -> None:
    """On both clocks."""
    early = end_all((hour(),), 100)
    assert [(each.ended, each.deadline.at, each.ended_by) for each in early] == [(START + 100, UPTIME + 100, "api")]
    assert end_all(early, 200) == early
    (late,) = end_all((hour(),), HOUR + 9)
    assert (late.ended, late.deadline.at) == (START + HOUR, UPTIME + HOUR)


def test_the_scopes_and_the_last_end_of_releases() -> None:
    """Holds and windows that have ended do not count."""
    windows = (hour(kind=RELEASE, bus_id="a"), hour(START + 9, RELEASE), hour(START + 50, HOLD))
    assert released_scopes(windows) == {"a", NODE}
    assert last_to_end(windows, RELEASE) == windows[1]
    assert released_scopes(end_all(windows, 10)) == frozenset()
    assert last_to_end(end_all(windows, 10), RELEASE) is None


def test_a_selection_matches_what_it_names_and_never_the_marker() -> None:
    """An attribute that is None matches every window."""
    one = hour(kind=HOLD, owner="4711")
    assert WindowSelection(by="api").matches(one)
    assert WindowSelection(by="api", kind=HOLD, owner="4711", bus_id=NODE, id=one.id).matches(one)
    for other in ({"kind": RELEASE}, {"owner": ""}, {"bus_id": "a"}, {"id": "other"}):
        assert not replace(WindowSelection(by="api"), **other).matches(one), other
    assert not WindowSelection(by="api").matches(hour(kind=RELEASE, by=MARKER))


def test_problems_of_a_request() -> None:
    """Reason and owner go to terminals, pages and logs."""
    for reason in ("", "  ", "x" * (MAX_REASON_LENGTH + 1), "two\nlines", "\x1b[31mred"):
        assert reason_problem(reason, required=True).endswith("."), reason
    assert reason_problem("") == reason_problem("new power supply: böse Überraschung", required=True) == ""
    assert owner_problem("x" * (MAX_OWNER_LENGTH + 1)) == "The owner has 101 characters; the maximum is 100."
    for seconds in (0.0, -1.0, 61.0, float("inf"), float("nan")):
        assert "x.max_seconds, which is 60" in duration_problem(seconds, 60, "x.max_seconds"), seconds
    assert duration_problem(60, 60, "x.max_seconds") == ""


def test_the_hint_of_a_hold_names_owner_end_reason_and_command() -> None:
    """For several holds, those of the one that ends last."""
    assert hold_hint(()) == ""
    several = (hour(kind=HOLD, owner="4711"), hour(START - 60, HOLD, owner="4712"))
    assert hold_hint(several) == (
        "Held until 2001-09-09 02:46:40 UTC by 4711 (by command), and 1 more: new PSU. "
        "Run again then, or end it with `gpumon probe unhold --owner 4711`."
    )
    alone = hold_hint((replace(hour(kind=HOLD), reason="", by="api"),))
    assert alone.startswith("Held until 2001-09-09 02:46:40 UTC by api. ")
    assert alone.endswith("`gpumon probe unhold`.")
