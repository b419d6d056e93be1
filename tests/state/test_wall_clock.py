"""The wall clock is for people: whatever it does, the same is known of the GPUs, and the same alerts fire."""

from __future__ import annotations

from dataclasses import replace

import pytest
from folded import TERMS, UP, healthy, lost, polled, seen
from hypothesis import given
from hypothesis import strategies as st

from gpumon.model.gpu_state import GpuState
from gpumon.model.now import Now
from gpumon.state.messages import Tick
from gpumon.state.reduce import reduce
from gpumon.state.report import Report

pytestmark = pytest.mark.slow


SECONDS = 40


def lived_through(steps: dict[int, float], *, lost_from: int) -> Report:
    """A poll every second and a look at the rules every five, while the wall clock is stepped at these seconds."""
    report, step = healthy(), 0.0
    for second in range(SECONDS):
        at = 100.0 + second
        step += steps.get(second, 0.0)
        moment = Now(at, 1e9 + at + step, at)
        second_gpu = lost(1) if second >= lost_from else seen(1)
        snapshot = replace(polled(seen(0), second_gpu, seen(2), at=at), wall=moment.wall)
        report = reduce(reduce(report, UP, moment, TERMS), snapshot, moment, TERMS)
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
    """GPUs, faults, counters and the states of alerts are those of a clock that was never wrong."""
    stepped, steady = lived_through(steps, lost_from=lost_from), lived_through({}, lost_from=lost_from)

    assert [timeless(state) for state in stepped.gpus] == [timeless(state) for state in steady.gpus]
    assert [(one.identity, one.state) for one in stepped.alerts] == [(one.identity, one.state) for one in steady.alerts]
    assert stepped.node.nvml_up == steady.node.nvml_up == 1
