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
told = st.lists(st.tuples(sources, st.integers(1, 5), st.floats(0, PAUSE)))


def after(*seen: ErrorObservation, boot: str = "boot-1") -> list[ErrorEvent]:
    """Return the last state of the events of these observations."""
    events = EventGrouper(boot)
    return list({one.id: one for one in map(events.add, seen)}.values())


@given(told)
def test_the_source_that_saw_more_is_right(interleaved: list[tuple[str, int, float]]) -> None:
    """Observations without a pause are one event, in any order of the sources."""
    at, seen, counts = 100.0, [], Counter({NVML: 0, KMSG: 0})
    for source, times, later in interleaved:
        at += later
        counts[source] += times
        seen.append(observation(at, source, times=times))

    assert sum(one.count for one in after(*seen)) == max(counts.values())
    assert len(after(*seen)) <= 1


@given(told, st.lists(st.booleans()))
def test_no_restart_counts_an_error_again(interleaved: list[tuple[str, int, float]], restarts: list[bool]) -> None:
    """An agent that is restarted between two observations continues the stored event."""
    at, seen = 100.0, []
    events, stored = EventGrouper("boot-1"), dict[str, ErrorEvent]()
    for number, (source, times, later) in enumerate(interleaved):
        at += later
        seen.append(observation(at, source, times=times))
        if restarts[number : number + 1] == [True]:
            events = EventGrouper("boot-1")
            events.restore(stored.values())
        one = events.add(seen[-1])
        stored[one.id] = one

    assert [one.count for one in stored.values()] == [one.count for one in after(*seen)]


@given(st.lists(st.integers(1, 9), max_size=9), st.permutations([NVML, KMSG]))
def test_a_pause_ends_a_burst(repeats: list[int], order: list[str]) -> None:
    """After a pause of three minutes the same error is another event, and both count."""
    seen = [
        observation(1000.0 * number, source, times=times) for number, times in enumerate(repeats) for source in order
    ]
    events = after(*seen)

    assert [one.count for one in events] == repeats
    assert all(one.sources == (NVML, KMSG) for one in events)


@pytest.mark.parametrize("numbered_first", [True, False])
def test_a_fall_told_in_words_and_by_number_is_one(*, numbered_first: bool) -> None:
    """A line without the number is an Xid 79, unless a line with the number follows."""
    words = [observation(100.0 + number, KMSG, numbered=False, text=f"words {number}") for number in range(3)]
    number = observation(101.0, KMSG, text="GPU has fallen off the bus.")
    (both,) = after(*([number, *words] if numbered_first else [*words, number]))
    (alone,) = after(*words)

    assert (both.count, alone.count, alone.code, alone.sources) == (1, 1, 79, (KMSG,))


def test_devices_codes_and_history_have_bursts_of_their_own() -> None:
    """Different errors at the same time are different events."""
    seen = [
        observation(100.0),
        observation(100.0, code=13),
        observation(100.0, bus_id="00000000:2A:00.0"),
        observation(100.0, historical=True),
        observation(100.0, KMSG, kind=SXID, code=79),
    ]
    assert [one.count for one in after(*seen, *seen)] == [2] * len(seen)


def test_errors_of_several_instances_are_the_gpus() -> None:
    """The event names a MIG instance until an observation names another."""
    first = partial(observation, gpu_instance_id=1, compute_instance_id=0)
    second = partial(observation, gpu_instance_id=2, compute_instance_id=0)
    seen = [first(100.0), observation(101.0, KMSG), first(102.0, KMSG)]
    (one,) = after(*seen)
    (several,) = after(*seen, second(103.0, KMSG), first(104.0, KMSG))

    assert (one.gpu_instance_id, one.compute_instance_id) == (1, 0)
    assert several.gpu_instance_id is None


def test_a_burst_knows_its_ends_and_some_of_its_words() -> None:
    """The event has the first and last time, the first different lines, and the newest line."""
    seen = [observation(100.0 + number, KMSG, text=f"line {number % 7}") for number in range(14)]
    (one,) = after(observation(101.5), *seen)

    assert (one.first_at, one.last_at, one.last_wall - one.first_wall) == (100.0, 113.0, 13.0)
    assert one.texts == tuple(f"line {number}" for number in range(MAX_TEXTS))
    assert one.text == "line 6"


def test_another_boot_begins_anew() -> None:
    """Events of another boot are not continued."""
    events = EventGrouper("boot-2")
    events.restore([error_event(100)])
    assert events.add(observation(101.0)).count == 1


def test_what_is_told_late_does_not_end_what_goes_on() -> None:
    """An old line is an event of its own, and the present event continues."""
    events = EventGrouper("boot-1")
    now = events.add(observation(5000.0))
    old = events.add(observation(100.0, KMSG))
    again = events.add(observation(5001.0))

    assert (again.id, again.count) == (now.id, 2)
    assert (old.id != now.id, old.count) == (True, 1)


def test_memory_is_bounded() -> None:
    """Beyond the maximum, the events that were silent longest end early."""
    events = EventGrouper("boot-1")
    for number in range(3 * MAX_OPEN):
        events.add(observation(float(number) / 100, code=number))

    assert len(events.end(0.0)) == MAX_OPEN
    assert events.add(observation(30.0, code=3 * MAX_OPEN - 1)).count == 2
    assert events.end(30.0 + 2 * PAUSE) == frozenset()
