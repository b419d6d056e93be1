"""Counters: raw values of the driver and gains of our own integrals become what is exported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.model.gpu import Gpu
from gpumon.state.counters import Count, Counts, advance, confirm_reset, raw_values, totals

ENERGY, SELDOM = "energy_joules_total", "ecc_errors_lifetime_total"


def exported(*polls: dict[str, dict[str, float]], every: float = 1.0) -> Counts:
    counts: Counts = {}
    for number, raws in enumerate(polls):
        counts = advance(counts, raws, {}, number * every)
    return counts


def test_a_counter_starts_at_the_drivers_value_and_follows_it() -> None:
    """The first value is taken as it is; later ones add what they grew by."""
    counts = exported({ENERGY: {"": 100.0}}, {ENERGY: {"": 130.0}})

    assert counts[ENERGY][""] == Count(130.0, 130.0)


def test_a_driver_reload_does_not_make_a_counter_fall() -> None:
    """A value that begins anew adds to what was counted before."""
    counts = exported({ENERGY: {"": 1000.0}}, {ENERGY: {"": 5.0}}, {ENERGY: {"": 8.0}})

    assert counts[ENERGY][""].total == 1008.0


def test_one_wrong_value_is_no_beginning() -> None:
    """A counter that reads almost nothing for one reading, and then goes on, has not counted everything twice.

    What is read seldom is told again with every poll until it is read anew.
    """
    counts = exported(*({ENERGY: {"": raw}} for raw in (1000.0, 3.0, 3.0, 3.0, 1002.0)))

    assert counts[ENERGY][""] == Count(1002.0, 1002.0)


def test_a_counter_that_begins_anew_twice_adds_up() -> None:
    """What was counted before each beginning stays counted."""
    counts = exported(*({ENERGY: {"": raw}} for raw in (1000.0, 5.0, 8.0, 100.0, 2.0, 3.0)))

    assert counts[ENERGY][""].total == 1000.0 + 100.0 + 3.0


def test_a_counter_that_runs_backwards_gains_nothing() -> None:
    """However far it falls, nothing was counted meanwhile."""
    counts = exported(*({ENERGY: {"": float(raw)}} for raw in range(1000, 0, -10)))

    assert counts[ENERGY][""].total == 1000.0


def test_what_is_counted_long_after_a_reset_is_counted() -> None:
    """Two errors, a reset, and much later one more: three, though the driver's own count is half of what it was."""
    counts = exported(*({ENERGY: {"": raw}} for raw in (2.0, 0.0, 0.0, 0.0, 1.0)))

    assert counts[ENERGY][""] == Count(3.0, 1.0)


@pytest.mark.parametrize("later", [2.0, 5.0])
def test_what_stays_low_for_long_is_a_beginning_wherever_it_goes_from_there(later: float) -> None:
    """Somebody has set it to 0; all that comes after that is new, though it brings the count to what it was."""
    counts = exported(*({ENERGY: {"": raw}} for raw in (2.0, 0.0, 0.0, 0.0, 0.0, 0.0, later)), every=15.0)

    assert counts[ENERGY][""] == Count(2.0 + later, later)


def test_a_wrong_value_of_what_is_read_seldom_is_no_beginning_though_it_is_told_for_minutes() -> None:
    """Every poll tells the last reading again."""
    counts = exported(*({SELDOM: {"": raw}} for raw in (9.0, 0.0, 0.0, 0.0, 0.0, 9.0, 10.0)), every=60.0)

    assert counts[SELDOM][""] == Count(10.0, 10.0)


def test_of_what_is_known_to_have_begun_anew_nothing_is_doubted() -> None:
    """What the driver has counted since then is new, whatever it was before; what did not fall has not begun anew."""
    counts = exported({ENERGY: {"fell": 8.0, "rose": 10.0}}, {ENERGY: {"fell": 1.0, "rose": 18.0}})
    counts = advance(confirm_reset(counts), {ENERGY: {"fell": 8.0, "rose": 19.0}}, {}, 2.0)

    assert counts[ENERGY] == {"fell": Count(16.0, 8.0), "rose": Count(19.0, 19.0)}


def test_a_small_step_back_is_held_until_it_is_made_good() -> None:
    """Jitter of the driver neither falls nor counts twice."""
    counts = exported({ENERGY: {"": 1000.0}}, {ENERGY: {"": 999.0}}, {ENERGY: {"": 1001.0}})

    assert counts[ENERGY][""].total == 1001.0


def test_a_sum_that_loses_a_part_counts_on() -> None:
    """A link of eighteen goes down, and its bytes with it: those of the others go on being counted at once."""
    counts = exported(*({ENERGY: {"": raw}} for raw in (1800.0, 1702.0, 1704.0, 1710.0)))

    assert counts[ENERGY][""] == Count(1808.0, 1710.0)


def test_a_counter_never_goes_from_driver_to_integral() -> None:
    """Once the driver has counted, an integral of the same row is ignored, and the other way round."""
    driver_first = advance(advance({}, {ENERGY: {"": 10.0}}, {}, 0.0), {}, {ENERGY: {"": 5.0}}, 1.0)
    integral_first = advance(advance({}, {}, {ENERGY: {"": 5.0}}, 0.0), {ENERGY: {"": 10.0}}, {}, 1.0)

    assert driver_first[ENERGY][""].total == 10.0
    assert integral_first[ENERGY][""].total == 5.0


def test_a_drivers_counter_that_was_not_read_now_is_absent_now() -> None:
    """Its total is remembered, but not shown, until it is read again."""
    counts = exported({ENERGY: {"": 10.0}})

    assert ENERGY not in totals(Gpu(), counts, {})
    assert totals(Gpu(energy_joules_total=12.0), counts, {})[ENERGY] == 10.0


@given(st.lists(st.floats(min_value=0, max_value=1e12), min_size=1))
def test_what_is_exported_never_falls(values: list[float]) -> None:
    """Whatever the driver says, the exported counter stays or grows."""
    counts: Counts = {}
    last = 0.0
    for number, value in enumerate(values):
        counts = advance(counts, raw_values(Gpu(energy_joules_total=value)), {}, number * 300.0)
        assert counts[ENERGY][""].total >= last
        last = counts[ENERGY][""].total
