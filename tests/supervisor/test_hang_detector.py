"""When a driver call counts as late."""

from __future__ import annotations

import pytest

from gpumon.model.call_progress import CallInProgress
from gpumon.supervisor.deadlines import SamplerDeadlines
from gpumon.supervisor.hang_detector import MAX_STEP_SECONDS, HangDetector
from gpumon.supervisor.sampler_child import call_deadline

DEADLINES = SamplerDeadlines()


def detector() -> HangDetector:
    """Return a detector with the deadlines of the sampler."""
    return HangDetector(lambda call: call_deadline(call, DEADLINES))


def in_call(sequence: int = 1, call: str = "nvmlDeviceGetTemperature") -> CallInProgress:
    return CallInProgress(sequence=sequence, calls=sequence, since=0.0, bus_id="00000000:1B:00.0", call=call)


def looked(lateness: HangDetector, call: CallInProgress, state: str, seconds: float, step: float = 0.25) -> bool:
    """Look at the same call again and again for so many seconds."""
    start = getattr(looked, "now", 0.0)
    late = False
    for n in range(int(seconds / step) + 1):
        late = lateness.is_late(call, state, start + n * step)
    looked.now = start + seconds  # type: ignore[attr-defined]
    return late


def test_a_call_seen_waiting_for_two_seconds_is_late() -> None:
    """A sleeping child in the same call for as long as the deadline is late, and not before."""
    lateness = detector()

    assert not looked(lateness, in_call(), "S", DEADLINES.call - 0.5)
    assert looked(lateness, in_call(), "S", 1.0)


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetHandleByPciBusId"])
def test_opening_a_gpu_may_take_a_minute(call: str) -> None:
    """An initialisation or a first handle lookup has sixty seconds."""
    lateness = detector()

    assert not looked(lateness, in_call(call=call), "D", DEADLINES.opening - 1)
    assert looked(lateness, in_call(call=call), "D", 2.0)


@pytest.mark.parametrize("state", ["R", "T"])
def test_a_starved_or_stopped_child_is_not_a_hung_driver(state: str) -> None:
    """A child that is runnable but gets no processor, or that somebody stopped, is never late."""
    assert not looked(detector(), in_call(), state, 100.0)


def test_a_paused_daemon_does_not_count_its_own_absence() -> None:
    """Sixty seconds between two looks add no more than one look's worth."""
    lateness = detector()
    lateness.is_late(in_call(), "S", 0.0)

    assert not lateness.is_late(in_call(), "S", 60.0)
    assert lateness.seconds <= MAX_STEP_SECONDS


def test_progress_starts_the_count_anew() -> None:
    """A child that entered another call since the last look is making progress."""
    lateness = detector()
    looked(lateness, in_call(1), "S", DEADLINES.call - 0.5)

    assert not looked(lateness, in_call(3), "S", DEADLINES.call - 0.5)


def test_no_call_is_never_late() -> None:
    """An even sequence means that the child is in no call."""
    assert not looked(detector(), in_call(2), "S", 100.0)
