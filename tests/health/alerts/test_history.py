"""What the history keeps, what it forgets, and what looking back on it costs."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_scrape import recorded
from rule_cases import PLAIN

from gpumon.health.alerting import rules
from gpumon.health.alerts.evaluate import evaluate
from gpumon.health.alerts.expression import Expression, Over, Reading
from gpumon.health.alerts.history import STEP, History
from gpumon.health.alerts.vector import View
from gpumon.model.reading import Labels, Sample

GAUGE = Reading("gpumon_gpu_temperature_celsius")
TOTAL = Reading("gpumon_gpu_busy_seconds_total")
HOUR = 3600.0


def watching(*expressions: Expression) -> History:
    return History().watching([replace(PLAIN, expression=expression) for expression in expressions])


def value(history: History, expression: Expression, at: float) -> float | None:
    return View(history, at, at).vector(expression).get(())


def test_series_absent_from_the_newest_addition_is_gone() -> None:
    """A reading that is no longer there is not judged by its last value."""
    history = watching(GAUGE).add([Sample(GAUGE.name, (), 91.0)], 100.0)
    assert value(history, GAUGE, 100.0) == 91.0
    assert value(history.add([], 101.0), GAUGE, 101.0) is None


def test_current_values_of_an_agent_that_stands_still_expire() -> None:
    """After five minutes without an addition nothing is current, as in Prometheus."""
    history = watching(GAUGE).add([Sample(GAUGE.name, (), 91.0)], 100.0)
    assert value(history, GAUGE, 400.0) == 91.0
    assert value(history, GAUGE, 401.0) is None


def test_what_a_series_gains_in_its_first_seconds_counts() -> None:
    """Also where others were there long before; and no other addition is kept for it."""
    gained = Over("increase", TOTAL, HOUR)
    history = watching(gained)
    for at in range(31):
        history = history.add([], float(at))
    kept = len(history.times)
    for at in range(31, 40):
        history = history.add([Sample(TOTAL.name, (), float(at > 33))], float(at))
    window = [window for _, window in history.window(TOTAL, HOUR, 40.0)]
    assert [one.values for one in window] == [[0.0, 1.0]]
    assert len(history.times) == kept + 2  # the first, and the newest


def test_only_named_metrics_are_kept() -> None:
    """What no rule reads costs no memory."""
    history = watching(GAUGE).add(recorded(), 0.0)
    assert set(history.latest) == {GAUGE.name}
    assert not history.runs


def test_reload_keeps_what_the_new_rules_still_read() -> None:
    """Other rules, after a change of the configuration, look back on the same past."""
    history = watching(Over("increase", TOTAL, HOUR))
    for at in range(0, 600, 15):
        history = history.add([Sample(TOTAL.name, (), float(at))], float(at))
    expression = Over("increase", TOTAL, 300.0)
    later = history.watching([replace(PLAIN, expression=expression)]).add([Sample(TOTAL.name, (), 600.0)], 600.0)
    assert value(later, expression, 600.0) == 300.0


ADDITIONS = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 7.0, 15.0, 200.0]), st.none() | st.integers(0, 3)))


@given(ADDITIONS)
def test_keeping_changes_only_loses_nothing(additions: list[tuple[float, int | None]]) -> None:
    """Points about a step apart, the newest one and the first of a series are kept; a window is what they say it is."""
    expression = Over("max_over_time", GAUGE, 300.0)
    history, at = watching(expression), 0.0
    plain: list[tuple[float, float | None]] = []
    begins = False
    for gap, one in additions:
        at += gap
        value_now = None if one is None else float(one)
        history = history.add([] if value_now is None else [Sample(GAUGE.name, (), value_now)], at)
        close = len(plain) > 1 and plain[-1][0] - plain[-2][0] < STEP and not begins
        begins = value_now is not None and all(point is None for _, point in plain)
        if plain and (plain[-1][0] == at or close):
            plain.pop()
        plain = [*((when, point) for when, point in plain if when >= at - 300.0), (at, value_now)]
        assert history.times == tuple(when for when, _ in plain)
        points = [point for _, point in plain if point is not None]
        windows = [window for _, window in history.window(GAUGE, 300.0, at)]
        assert [repeated(window.values, window.counts) for window in windows] == ([points] if points else [])
        assert value(history, expression, at) == max(points, default=None)


def repeated(values: list[float], counts: list[int]) -> list[float]:
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]


def test_thinned_counter_grows_as_the_whole_one() -> None:
    """Polled every second but kept every fifteen, a counter shows its growth at once and loses none of it."""
    expression = Over("increase", TOTAL, HOUR)
    history = watching(expression)
    for second in range(7200):
        history = history.add([Sample(TOTAL.name, (), 0.5 * second + (second >= 7199))], float(second))
    assert len(history.times) <= HOUR / STEP + 2
    assert value(history, expression, 7199.0) == pytest.approx(1801.0, abs=0.5)


def aged(labels: Labels, sample: Sample, second: float) -> Sample:
    return Sample(sample.name, labels, sample.value + second * 0.7 if "seconds_total" in sample.name else sample.value)


def test_evaluation_of_a_full_hour_is_cheap() -> None:
    """Eight GPUs of 18 links with an hour of history: well under 5 ms to evaluate, at the best of several tries."""
    known = rules({"allreduce_gloo_busbw_bytes_per_second": 1.0})
    scrape, history = [(one.labels, one) for one in recorded()], History().watching(known)
    for second in range(0, 3700, 15):
        history = history.add([aged(labels, one, second) for labels, one in scrape], float(second))
    tries = []
    for _ in range(15):
        started = time.perf_counter()
        evaluate(known, history, (), 3690.0, 3690.0)
        tries.append(time.perf_counter() - started)
    assert min(tries) < 0.005, f"{min(tries) * 1000:.1f} ms"


def test_window_knows_when_its_last_value_came() -> None:
    """Within it; and one in which nobody looked holds nothing."""
    history = History().watching([], {TOTAL.name: HOUR})
    for at, count in ((0.0, 1.0), (15.0, 1.0), (30.0, 2.0), (45.0, 2.0), (60.0, 2.0)):
        history = history.add([Sample(TOTAL.name, (), count)], at)
    assert [window.changed_at for _, window in history.window(TOTAL, 60.0, 60.0)] == [30.0]
    assert [window.changed_at for _, window in history.window(TOTAL, 20.0, 60.0)] == [45.0]
    assert not list(history.window(TOTAL, 60.0, 500.0))
