"""Steps of the wall clock change neither the state of the GPUs nor the alerts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reduced_reports import TERMS, UP, gpu_reading, healthy, lost_reading, snapshot

from gpumon.model.gpu_state import GpuState
from gpumon.model.instant import Now
from gpumon.state.messages import Tick
from gpumon.state.reduce import reduce
from gpumon.state.report import Report

pytestmark = pytest.mark.slow


SECONDS = 40


def lived_through(steps: dict[int, float], *, lost_from: int) -> Report:
    """Return the report after a poll every second and alert rules every 5 s, with the wall clock stepped."""
    report, step = healthy(), 0.0
    for second in range(SECONDS):
        at = 100.0 + second
        step += steps.get(second, 0.0)
        moment = Now(at, 1e9 + at + step, at)
        second_gpu = lost_reading(1) if second >= lost_from else gpu_reading(1)
        poll = replace(snapshot(gpu_reading(0), second_gpu, gpu_reading(2), at=at), wall=moment.wall)
        report = reduce(reduce(report, UP, moment, TERMS), poll, moment, TERMS)
        if second % 5 == 0:
            report = reduce(report, Tick(), moment, TERMS)
    return report


def timeless(state: GpuState) -> GpuState:
    return replace(state, since=None, stored=None)


@given(
    st.dictionaries(st.integers(0, SECONDS - 1), st.floats(-1e8, 1e8), max_size=4),
    st.integers(0, SECONDS),
)
def test_steps_of_the_wall_clock_change_nothing_but_times(steps: dict[int, float], lost_from: int) -> None:
    """GPUs, faults, counters and alerts are the same as with a steady clock."""
    stepped, steady = lived_through(steps, lost_from=lost_from), lived_through({}, lost_from=lost_from)

    assert [timeless(state) for state in stepped.gpus] == [timeless(state) for state in steady.gpus]
    assert [(alert.identity, alert.state) for alert in stepped.alerts] == [
        (alert.identity, alert.state) for alert in steady.alerts
    ]
    assert stepped.node.nvml_up == steady.node.nvml_up == 1
