"""An error that both sources report counts once, in any order; a repeat counts again."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_events import error_event, observation

from gpumon.model.error_event import KMSG, MAX_TEXTS, NVML, SXID, ErrorEvent, ErrorObservation
from gpumon.state.event_grouping import MAX_OPEN, PAUSE, EventGrouper

sources = st.sampled_from([NVML, KMSG])
interleavings = st.lists(st.tuples(sources, st.integers(1, 5), st.floats(0, PAUSE)))


def after(*observations: ErrorObservation, boot: str = "boot-1") -> list[ErrorEvent]:
    """Return the last state of the events of these observations."""
    events = EventGrouper(boot)
    return list({event.id: event for event in map(events.add, observations)}.values())


@given(interleavings)
def test_the_source_with_the_higher_count_is_used(interleaved: list[tuple[str, int, float]]) -> None:
    """Observations without a pause form one event with the higher count of the two sources, in any order."""
    at, observations, counts = 100.0, [], Counter({NVML: 0, KMSG: 0})
    for source, times, later in interleaved:
        at += later
        counts[source] += times
        observations.append(observation(at, source, times=times))

    assert sum(event.count for event in after(*observations)) == max(counts.values())
    assert len(after(*observations)) <= 1


@given(interleavings, st.lists(st.booleans()))
def test_a_restart_counts_no_error_again(interleaved: list[tuple[str, int, float]], restarts: list[bool]) -> None:
    """An agent that is restarted between two observations continues the stored event."""
    at, observations = 100.0, []
    events, stored = EventGrouper("boot-1"), dict[str, ErrorEvent]()
    for number, (source, times, later) in enumerate(interleaved):
        at += later
        observations.append(observation(at, source, times=times))
        if restarts[number : number + 1] == [True]:
            events = EventGrouper("boot-1")
            events.restore(stored.values())
        event = events.add(observations[-1])
        stored[event.id] = event

    assert [event.count for event in stored.values()] == [event.count for event in after(*observations)]


@given(st.lists(st.integers(1, 9), max_size=9), st.permutations([NVML, KMSG]))
def test_a_pause_ends_a_burst(repeats: list[int], order: list[str]) -> None:
    """After a pause of three minutes the same error is another event, and both count."""
    observations = [
        observation(1000.0 * number, source, times=times) for number, times in enumerate(repeats) for source in order
    ]
    events = after(*observations)

    assert [event.count for event in events] == repeats
    assert all(event.sources == (NVML, KMSG) for event in events)


@pytest.mark.parametrize("numbered_first", [True, False])
def test_a_gpu_loss_with_and_without_an_xid_number_is_one_event(*, numbered_first: bool) -> None:
    """A line without the number is an Xid 79, unless a line with the number follows."""
    words = [observation(100.0 + number, KMSG, numbered=False, text=f"words {number}") for number in range(3)]
    number = observation(101.0, KMSG, text="GPU has fallen off the bus.")
    (both,) = after(*([number, *words] if numbered_first else [*words, number]))
    (alone,) = after(*words)

    assert (both.count, alone.count, alone.code, alone.sources) == (1, 1, 79, (KMSG,))


def test_devices_codes_kinds_and_history_have_separate_bursts() -> None:
    observations = [
        observation(100.0),
        observation(100.0, code=13),
        observation(100.0, bus_id="00000000:2A:00.0"),
        observation(100.0, historical=True),
        observation(100.0, KMSG, kind=SXID, code=79),
    ]
    assert [event.count for event in after(*observations, *observations)] == [2] * len(observations)


def test_errors_of_several_instances_belong_to_the_gpu() -> None:
    """The event names a MIG instance until an observation names another."""
    first = partial(observation, gpu_instance_id=1, compute_instance_id=0)
    second = partial(observation, gpu_instance_id=2, compute_instance_id=0)
    observations = [first(100.0), observation(101.0, KMSG), first(102.0, KMSG)]
    (event,) = after(*observations)
    (several,) = after(*observations, second(103.0, KMSG), first(104.0, KMSG))

    assert (event.gpu_instance_id, event.compute_instance_id) == (1, 0)
    assert several.gpu_instance_id is None


def test_a_burst_has_its_first_and_last_times_and_some_lines() -> None:
    observations = [observation(100.0 + number, KMSG, text=f"line {number % 7}") for number in range(14)]
    (event,) = after(observation(101.5), *observations)

    assert (event.first.at, event.last.at, event.last.wall - event.first.wall) == (100.0, 113.0, 13.0)
    assert event.texts == tuple(f"line {number}" for number in range(MAX_TEXTS))
    assert event.text == "line 6"


def test_another_boot_starts_new_events() -> None:
    events = EventGrouper("boot-2")
    events.restore([error_event(100)])
    assert events.add(observation(101.0)).count == 1


def test_a_late_line_does_not_end_the_current_event() -> None:
    """An old line becomes a separate event, and the current event continues."""
    events = EventGrouper("boot-1")
    now = events.add(observation(5000.0))
    old = events.add(observation(100.0, KMSG))
    again = events.add(observation(5001.0))

    assert (again.id, again.count) == (now.id, 2)
    assert (old.id != now.id, old.count) == (True, 1)


def test_event_with_the_longest_silence_ends_early_after_a_restart_too() -> None:
    events, stored = EventGrouper("boot-1"), EventGrouper("boot-1")
    events.restore([stored.add(observation(100.0 + number / 100, code=number)) for number in range(MAX_OPEN)])
    events.add(observation(111.0, code=MAX_OPEN))

    assert events.add(observation(112.0, code=MAX_OPEN - 1)).count == 2
    assert events.add(observation(112.0, code=0)).count == 1


def test_memory_is_bounded() -> None:
    """Above the maximum, the events with the longest silence end early."""
    events = EventGrouper("boot-1")
    for number in range(3 * MAX_OPEN):
        events.add(observation(float(number) / 100, code=number))

    assert len(events.end(0.0)) == MAX_OPEN
    assert events.add(observation(30.0, code=3 * MAX_OPEN - 1)).count == 2
    assert events.end(30.0 + 2 * PAUSE) == frozenset()
