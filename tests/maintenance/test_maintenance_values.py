"""A maintenance as time goes by: on the boot clock within a boot, on the wall clock over one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.maintenance import (
    LONGEST_REASON,
    MOST_REMEMBERED,
    Maintenance,
    begun,
    covered,
    ended,
    in_force,
    in_time,
    wrong_reason,
)
from gpumon.moment import Moment

BEGAN, HOUR, UPTIME = 1e9, 3600.0, 5000.0


def one(began: float = BEGAN, boot_id: str = "a") -> Maintenance:
    """An hour, in a boot that was UPTIME old."""
    return Maintenance(
        began=began,
        until=began + HOUR,
        deadline=UPTIME + HOUR,
        boot_id=boot_id,
        reason="new power supply",
        by="command",
    )


def after(seconds: float, *, stepped: float = 0.0, booted: float | None = None) -> Moment:
    """So long after its beginning; `booted` after the beginning, too."""
    at = UPTIME + seconds if booted is None else seconds - booted
    return Moment(at=at, wall=BEGAN + seconds + stepped, lived=at)


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


@pytest.mark.parametrize(("seconds", "lasts"), [(HOUR - 10, True), (HOUR + 10, False)])
def test_over_a_reboot_the_wall_clock_counts(seconds: float, *, lasts: bool) -> None:
    """It ends when it was said that it would, and from then on no step of that clock changes it."""
    known = in_time((one(),), after(seconds, booted=seconds - 30), "b")
    assert (in_force(known) is not None) == lasts
    if lasts:
        later = in_time(known, after(seconds + 9, stepped=-86400.0, booted=seconds - 30), "b")
        assert in_force(later)
        assert not in_force(in_time(later, after(HOUR + 1, stepped=-86400.0, booted=seconds - 30), "b"))


def test_a_clock_that_is_not_set_yet_does_not_prolong_it_without_end() -> None:
    """After a boot in 1970 it lasts its own length at most."""
    booted = after(600, stepped=-BEGAN, booted=580)
    known = in_time((one(),), booted, "b")
    assert in_force(known)
    assert not in_force(in_time(known, after(600 + HOUR + 1, stepped=-BEGAN, booted=580), "b"))


def test_the_next_takes_the_place_of_the_one_in_force() -> None:
    """And only so many are remembered."""
    known = begun((one(),), one(BEGAN + 60))
    assert [each.ended for each in known] == [BEGAN + 60, None]
    for number in range(2, 3 * MOST_REMEMBERED):
        known = begun(known, one(BEGAN + 60 * number))
    assert len(known) == MOST_REMEMBERED


def test_what_was_planned_is_known_afterwards() -> None:
    """A host that went down while one was in force went down for it, whether it ended early or in time."""
    early = ended((one(),), BEGAN + 100)
    assert [covered(early, BEGAN + seconds) for seconds in (-1, 0, 100, 101)] == [False, True, True, False]
    assert [covered((one(),), BEGAN + seconds) for seconds in (HOUR, HOUR + 1)] == [True, False]
    assert ended(early, BEGAN + 200) == early


@pytest.mark.parametrize("reason", ["", "  ", "x" * (LONGEST_REASON + 1), "two\nlines", "\x1b[31mred"])
def test_a_reason_is_short_and_printable(reason: str) -> None:
    """It goes to terminals, pages and logs, and somebody has to understand it."""
    assert wrong_reason(reason).endswith(".")
    assert not wrong_reason("new power supply: böse Überraschung")
