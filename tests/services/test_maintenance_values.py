"""A maintenance as time goes by: on the boot clock within a boot, on the wall clock over one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.model.maintenance import (
    MOST_REMEMBERED,
    Known,
    Maintenance,
    MaintenanceEnded,
    begun,
    ended,
    in_force,
    in_time,
    wrong_reason,
)
from gpumon.model.now import Now
from gpumon.model.time_window import LONGEST_REASON, SETTLED_SECONDS

BEGAN, HOUR, UPTIME = 1e9, 3600.0, 5000.0


def one(began: float = BEGAN, boot_id: str = "a") -> Maintenance:
    """An hour, in a boot that was UPTIME old."""
    return Maintenance(
        began=began,
        began_at=UPTIME + began - BEGAN,
        until=began + HOUR,
        deadline=UPTIME + began - BEGAN + HOUR,
        boot_id=boot_id,
        reason="new power supply",
        by="command",
    )


def after(seconds: float, *, stepped: float = 0.0, booted: float | None = None) -> Now:
    """So long after its beginning; `booted` after the beginning, too."""
    at = UPTIME + seconds if booted is None else seconds - booted
    return Now(at=at, wall=BEGAN + seconds + stepped, uptime=at)


def test_it_is_in_force_until_its_time_is_up() -> None:
    """And ends at the moment that was told, however late somebody looks."""
    known = in_time((one(),), after(HOUR - 1), "a")
    assert in_force(known) == one()
    (over,) = in_time(known, after(HOUR + 250), "a")
    assert (in_force((over,)), over.ended) == (None, BEGAN + HOUR)


@given(st.floats(-1e8, 1e8), st.floats(0, 2 * HOUR))
def test_a_step_of_the_clock_neither_ends_nor_prolongs_it(stepped: float, seconds: float) -> None:
    """Within one boot; what Prometheus is told of its end moves with the clock."""
    known = in_time((one(),), after(seconds, stepped=stepped), "a")
    assert (in_force(known) is not None) == (seconds < HOUR)
    if seconds < HOUR:
        assert known[-1].until == pytest.approx(BEGAN + HOUR + stepped, abs=1.1)


def test_over_a_reboot_the_wall_clock_counts() -> None:
    """It ends when it was said that it would, and from then on no step of that clock changes it."""
    left = HOUR - REBOOTED
    assert seen((one(),), (30, 0.0), (39, -86_400.0), (left - 1, 86_400.0), (left + 1, -86_400.0)) == [
        *[True] * 3,
        False,
    ]
    assert seen((one(),), (left + 1, 0.0)) == [False]


REBOOTED = 580
"""Seconds after its beginning at which the host came up again."""


def seen(known: Known, *looks: tuple[float, float]) -> list[bool]:
    """Whether it is in force at each look: seconds after the second boot, and how wrong its clock is then."""
    found = []
    for uptime, stepped in looks:
        known = in_time(known, after(REBOOTED + uptime, stepped=stepped, booted=REBOOTED), "b")
        found.append(in_force(known) is not None)
    return found


@given(st.floats(-BEGAN, 1e8), st.floats(1, SETTLED_SECONDS - 1))
def test_a_clock_that_is_wrong_until_it_is_set_changes_nothing(wrong: float, late: float) -> None:
    """It ends when it was said that it would, unless the wrong time was one that may be true: within its hour."""
    left = HOUR - REBOOTED
    if not -REBOOTED - 1 <= wrong <= left:
        looks = ((1.0, wrong), (late, wrong), (late + 1, 0.0), (left - 1, 0.0), (left + 1, 0.0))
        assert seen((one(),), *looks) == [True, True, True, True, False]


def test_a_clock_that_nobody_sets_prolongs_it_by_its_own_length_at_most() -> None:
    """After a boot in 1970: counted from that boot, over restarts of the agent."""
    assert seen((one(),), (20, -BEGAN), (HOUR - 1, -BEGAN), (HOUR + 1, -BEGAN)) == [True, True, False]
    assert seen((one(),), (HOUR + 1, -BEGAN)) == [False]


def test_a_clock_that_says_that_it_is_over_is_believed_after_a_while() -> None:
    """The host may have been down for a year, or its clock may be wrong: nobody can tell in the first minutes."""
    year = 365 * 86_400.0
    assert seen((one(),), (20, year), (SETTLED_SECONDS - 1, year), (SETTLED_SECONDS, year)) == [True, True, False]


def test_its_own_length_is_known_though_its_clock_was_wrong_when_it_began() -> None:
    """Begun in 1970, before NTP had stepped the clock, it does not last for years after a boot in 1970."""
    begun_wrong = replace(one(), began=12.0, until=12.0 + HOUR)
    (known,) = in_time((begun_wrong,), after(10), "a")
    assert known.until == pytest.approx(BEGAN + HOUR)
    assert seen((known,), (20, -BEGAN), (HOUR + 1, -BEGAN)) == [True, False]
    assert seen((known,), (20, 0.0), (HOUR - REBOOTED + 1, 0.0)) == [True, False]


def test_the_next_takes_the_place_of_the_one_in_force() -> None:
    """And only so many are remembered."""
    known = begun((one(),), one(BEGAN + 60))
    assert [each.ended for each in known] == [BEGAN + 60, None]
    for number in range(2, 3 * MOST_REMEMBERED):
        known = begun(known, one(BEGAN + 60 * number))
    assert len(known) == MOST_REMEMBERED


def test_it_ends_once_and_no_later_than_it_should() -> None:
    """On both clocks, whoever asks how often."""
    early = ended((one(),), MaintenanceEnded(BEGAN + 100, UPTIME + 100))
    assert [(each.ended, each.deadline) for each in early] == [(BEGAN + 100, UPTIME + 100)]
    assert ended(early, MaintenanceEnded(BEGAN + 200, UPTIME + 200)) == early
    (late,) = ended((one(),), MaintenanceEnded(BEGAN + HOUR + 9, UPTIME + HOUR + 9))
    assert (late.ended, late.deadline) == (BEGAN + HOUR, UPTIME + HOUR)


@pytest.mark.parametrize("reason", ["", "  ", "x" * (LONGEST_REASON + 1), "two\nlines", "\x1b[31mred"])
def test_a_reason_is_short_and_printable(reason: str) -> None:
    """It goes to terminals, pages and logs, and somebody has to understand it."""
    assert wrong_reason(reason).endswith(".")
    assert not wrong_reason("new power supply: böse Überraschung")
