"""Tests of counters: driver values and the agent's own integrals become exported totals."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpumon.model.counter import Count, Counts
from gpumon.model.gpu import Gpu
from gpumon.state.counters import advance, confirm_reset, raw_values, totals

ENERGY, SELDOM = "energy_joules_total", "ecc_errors_lifetime_total"


def exported_counts(*polls: dict[str, dict[str, float]], every: float = 1.0) -> Counts:
    counts: Counts = {}
    for number, raws in enumerate(polls):
        counts = advance(counts, raws, {}, number * every)
    return counts


def test_a_counter_starts_at_the_driver_value_and_follows_it() -> None:
    """The first value is exported unchanged; later values add their increase."""
    counts = exported_counts({ENERGY: {"": 100.0}}, {ENERGY: {"": 130.0}})

    assert counts[ENERGY][""] == Count(130.0, 130.0)


def test_a_driver_reload_does_not_make_a_counter_fall() -> None:
    """After a restart of the driver's counter its new values add to the previous total."""
    counts = exported_counts({ENERGY: {"": 1000.0}}, {ENERGY: {"": 5.0}}, {ENERGY: {"": 8.0}})

    assert counts[ENERGY][""].total == 1008.0


def test_one_low_value_is_not_a_restart() -> None:
    """One low reading does not restart a counter that continues afterwards.

    A rarely read value is repeated in every poll until the next reading.
    """
    counts = exported_counts(*({ENERGY: {"": raw}} for raw in (1000.0, 3.0, 3.0, 3.0, 1002.0)))

    assert counts[ENERGY][""] == Count(1002.0, 1002.0)


def test_a_counter_that_restarts_twice_adds_up() -> None:
    counts = exported_counts(*({ENERGY: {"": raw}} for raw in (1000.0, 5.0, 8.0, 100.0, 2.0, 3.0)))

    assert counts[ENERGY][""].total == 1000.0 + 100.0 + 3.0


def test_a_falling_counter_adds_nothing() -> None:
    counts = exported_counts(*({ENERGY: {"": float(raw)}} for raw in range(1000, 0, -10)))

    assert counts[ENERGY][""].total == 1000.0


def test_errors_long_after_a_reset_are_counted() -> None:
    """Two errors, a reset, and one later error make a total of three."""
    counts = exported_counts(*({ENERGY: {"": raw}} for raw in (2.0, 0.0, 0.0, 0.0, 1.0)))

    assert counts[ENERGY][""] == Count(3.0, 1.0)


@pytest.mark.parametrize("later", [2.0, 5.0])
def test_a_value_that_stays_low_is_a_restart(later: float) -> None:
    counts = exported_counts(*({ENERGY: {"": raw}} for raw in (2.0, 0.0, 0.0, 0.0, 0.0, 0.0, later)), every=15.0)

    assert counts[ENERGY][""] == Count(2.0 + later, later)


def test_a_repeated_wrong_value_of_a_slow_field_is_not_a_restart() -> None:
    counts = exported_counts(*({SELDOM: {"": raw}} for raw in (9.0, 0.0, 0.0, 0.0, 0.0, 9.0, 10.0)), every=60.0)

    assert counts[SELDOM][""] == Count(10.0, 10.0)


def test_a_confirmed_reset_restarts_the_counters_that_fell() -> None:
    """After a confirmed reset, values that fell count from zero; values that rose continue."""
    counts = exported_counts({ENERGY: {"fell": 8.0, "rose": 10.0}}, {ENERGY: {"fell": 1.0, "rose": 18.0}})
    counts = advance(confirm_reset(counts), {ENERGY: {"fell": 8.0, "rose": 19.0}}, {}, 2.0)

    assert counts[ENERGY] == {"fell": Count(16.0, 8.0), "rose": Count(19.0, 19.0)}


def test_a_small_decrease_is_not_exported() -> None:
    counts = exported_counts({ENERGY: {"": 1000.0}}, {ENERGY: {"": 999.0}}, {ENERGY: {"": 1001.0}})

    assert counts[ENERGY][""].total == 1001.0


def test_a_sum_that_loses_a_part_continues() -> None:
    """When one of 18 links goes down, the sum continues with the bytes of the other links."""
    counts = exported_counts(*({ENERGY: {"": raw}} for raw in (1800.0, 1702.0, 1704.0, 1710.0)))

    assert counts[ENERGY][""] == Count(1808.0, 1710.0)


def test_a_counter_keeps_its_source() -> None:
    """A row keeps its first source: after a driver value it ignores integrals, and the reverse."""
    driver_first = advance(advance({}, {ENERGY: {"": 10.0}}, {}, 0.0), {}, {ENERGY: {"": 5.0}}, 1.0)
    integral_first = advance(advance({}, {}, {ENERGY: {"": 5.0}}, 0.0), {ENERGY: {"": 10.0}}, {}, 1.0)

    assert driver_first[ENERGY][""].total == 10.0
    assert integral_first[ENERGY][""].total == 5.0


def test_a_driver_counter_without_a_reading_is_absent() -> None:
    """A driver counter without a current reading is absent, and its total is kept."""
    counts = exported_counts({ENERGY: {"": 10.0}})

    assert ENERGY not in totals(Gpu(), counts, {})
    assert totals(Gpu(energy_joules_total=12.0), counts, {})[ENERGY] == 10.0


@example([527656066187.01013, 0.0, 381237041059.14136, 190618520530.0, 190618520530.0])
@given(st.lists(st.floats(min_value=0, max_value=1e12), min_size=1))
def test_exported_counters_never_fall(values: list[float]) -> None:
    counts: Counts = {}
    last = 0.0
    for number, value in enumerate(values):
        counts = advance(counts, raw_values(Gpu(energy_joules_total=value)), {}, number * 300.0)
        assert counts[ENERGY][""].total >= last
        last = counts[ENERGY][""].total
