"""When a driver call counts as late."""

from __future__ import annotations

import pytest

from gpumon.model.call_progress import CallInProgress
from gpumon.supervisor.hang_detector import CALL_SECONDS, LONGEST_LOOK, OPENING_SECONDS, HangDetector


def in_call(sequence: int = 1, call: str = "nvmlDeviceGetTemperature") -> CallInProgress:
    return CallInProgress(sequence=sequence, calls=sequence, since=0.0, bus_id="00000000:1B:00.0", call=call)


def looked(lateness: HangDetector, call: CallInProgress, state: str, seconds: float, step: float = 0.25) -> bool:
    """Look at the same call again and again for so many seconds."""
    start = getattr(looked, "now", 0.0)
    late = False
    for n in range(int(seconds / step) + 1):
        late = lateness.look(call, state, start + n * step)
    looked.now = start + seconds  # type: ignore[attr-defined]
    return late


def test_a_call_seen_waiting_for_two_seconds_is_late() -> None:
    """A sleeping child in the same call for as long as the deadline is late, and not before."""
    lateness = HangDetector()

    assert not looked(lateness, in_call(), "S", CALL_SECONDS - 0.5)
    assert looked(lateness, in_call(), "S", 1.0)


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetHandleByPciBusId"])
def test_opening_a_gpu_may_take_a_minute(call: str) -> None:
    """An initialisation or a first handle lookup has sixty seconds."""
    lateness = HangDetector()

    assert not looked(lateness, in_call(call=call), "D", OPENING_SECONDS - 1)
    assert looked(lateness, in_call(call=call), "D", 2.0)


@pytest.mark.parametrize("state", ["R", "T"])
def test_a_starved_or_stopped_child_is_not_a_hung_driver(state: str) -> None:
    """A child that is runnable but gets no processor, or that somebody stopped, is never late."""
    assert not looked(HangDetector(), in_call(), state, 100.0)


def test_a_paused_daemon_does_not_count_its_own_absence() -> None:
    """Sixty seconds between two looks add no more than one look's worth."""
    lateness = HangDetector()
    lateness.look(in_call(), "S", 0.0)

    assert not lateness.look(in_call(), "S", 60.0)
    assert lateness.seconds <= LONGEST_LOOK


def test_progress_starts_the_count_anew() -> None:
    """A child that entered another call since the last look is making progress."""
    lateness = HangDetector()
    looked(lateness, in_call(1), "S", CALL_SECONDS - 0.5)

    assert not looked(lateness, in_call(3), "S", CALL_SECONDS - 0.5)


def test_no_call_is_never_late() -> None:
    """An even sequence means that the child is in no call."""
    assert not looked(HangDetector(), in_call(2), "S", 100.0)
