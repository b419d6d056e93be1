"""The sample windows: what is stored, what expires, and what checks read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.health.sample_windows import (
    STEP,
    SampleHistory,
    SampleWindow,
    by_device,
    flag_was_set,
    with_labels,
)
from gpumon.health.verdict import NODE
from gpumon.model.reading import Sample

GAUGE, TOTAL = "gpumon_gpu_temperature_celsius", "gpumon_gpu_busy_seconds_total"
HOUR = 3600.0


def recording(metric: str, seconds: float = HOUR) -> SampleHistory:
    return SampleHistory(windows={metric: seconds})


def test_only_recorded_metrics_are_stored() -> None:
    """A window of a metric that is not recorded is a mistake of the table, and raises."""
    history = recording(GAUGE).add([Sample(GAUGE, (), 1.0), Sample(TOTAL, (), 1.0)], 0.0)
    assert set(history.runs) == {GAUGE}
    with pytest.raises(LookupError, match="not recorded"):
        list(history.series(TOTAL, 60.0, 0.0))


def test_the_first_increase_of_a_new_series_is_kept() -> None:
    """The first point of a series is stored, even if it is closer than a step to the one before it."""
    history = recording(TOTAL)
    for at in range(31):
        history = history.add([], float(at))
    kept = len(history.times)
    for at in range(31, 40):
        history = history.add([Sample(TOTAL, (), float(at > 33))], float(at))
    (series,) = history.series(TOTAL, HOUR, 40.0)
    assert (series.values, series.gain) == ([0.0, 1.0], 1.0)
    assert len(history.times) == kept + 2  # the first point of the series, and the newest


def test_a_counter_loses_no_increase() -> None:
    """Read every second and stored every 15, a counter shows its increase at once."""
    history = recording(TOTAL)
    for second in range(7200):
        history = history.add([Sample(TOTAL, (), 0.5 * second + (second >= 7199))], float(second))
    assert len(history.times) <= HOUR / STEP + 2
    (series,) = history.series(TOTAL, HOUR, 7199.0)
    assert series.gain == pytest.approx(1801.0, abs=STEP)


def test_a_window_knows_when_its_last_value_came() -> None:
    history = recording(TOTAL)
    for at, count in ((0.0, 1.0), (15.0, 1.0), (30.0, 2.0), (45.0, 2.0), (60.0, 2.0)):
        history = history.add([Sample(TOTAL, (), count)], at)
    assert [series.changed_at for series in history.series(TOTAL, 60.0, 60.0)] == [30.0]
    assert [series.changed_at for series in history.series(TOTAL, 20.0, 60.0)] == [45.0]
    assert not list(history.series(TOTAL, 60.0, 500.0))
    (growth,) = history.growth(TOTAL, HOUR, 60.0)
    assert growth.steps == ((30.0, 1.0),)
    assert not list(history.growth(TOTAL, 20.0, 60.0))


def test_series_belong_to_a_gpu_a_port_or_the_node() -> None:
    history = recording(GAUGE)
    labels = ((("gpu", "0"), ("uuid", "GPU-0")), (("device", "mlx5_0"), ("port", "1")), (("service", "imex"),))
    history = history.add([Sample(GAUGE, each, 1.0) for each in labels], 0.0)
    found = by_device(history.series(GAUGE, 60.0, 0.0))
    assert set(found) == {"GPU-0", "mlx5_0/1", NODE}
    assert with_labels(found[NODE], service="imex") is not None
    assert with_labels(found[NODE], service="fabric_manager") is None


def test_a_flag_is_unknown_until_the_window_is_covered() -> None:
    """It held if its time suffices; it did not if the time that was not observed cannot change that."""
    window, history = SampleWindow(GAUGE, 300.0), recording(GAUGE, 300.0)
    answers = []
    for at in range(0, 301, 15):
        history = history.add([Sample(GAUGE, (), float(at >= 200))], float(at))
        series = with_labels(history.series(GAUGE, 300.0, float(at)))
        answers.append(flag_was_set(series, window, 90.0))
    assert answers[0] is None
    assert answers[-4] is False
    assert answers[-1] is True
    assert flag_was_set(None, window, 90.0) is None


POINTS = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 7.0, 15.0, 200.0]), st.none() | st.integers(0, 3)))


@given(POINTS)
def test_storing_only_changes_loses_nothing(points: list[tuple[float, int | None]]) -> None:
    """Points a step apart, the newest one and the first of a series are stored; a window returns them all."""
    history, at = recording(GAUGE, 300.0), 0.0
    plain: list[tuple[float, float | None]] = []
    begins = False
    for gap, number in points:
        at += gap
        value = None if number is None else float(number)
        history = history.add([] if value is None else [Sample(GAUGE, (), value)], at)
        close = len(plain) > 1 and plain[-1][0] - plain[-2][0] < STEP and not begins
        begins = value is not None and all(point is None for _, point in plain)
        if plain and (plain[-1][0] == at or close):
            plain.pop()
        plain = [*((when, point) for when, point in plain if when >= at - 300.0), (at, value)]
        assert history.times == tuple(when for when, _ in plain)
        stored = [point for _, point in plain if point is not None]
        windows = list(history.series(GAUGE, 300.0, at))
        assert [repeat(series.values, series.counts) for series in windows] == ([stored] if stored else [])
        assert [series.mean for series in windows] == ([pytest.approx(sum(stored) / len(stored))] if stored else [])


def repeat(values: list[float], counts: list[int]) -> list[float]:
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]
