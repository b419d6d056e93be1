"""An error counts once, though two sources tell of it, in whatever order; a repeat counts again."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_bursts import burst, sighting

from gpumon.model.error_event import KMSG, MOST_TEXTS, NVML, SXID, Burst, Sighting
from gpumon.state.event_grouping import MOST_OPEN, PAUSE, Bursts

sources = st.sampled_from([NVML, KMSG])
told = st.lists(st.tuples(sources, st.integers(1, 5), st.floats(0, PAUSE)))


def after(*seen: Sighting, boot: str = "boot-1") -> list[Burst]:
    """The bursts that these make, as they are in the end."""
    bursts = Bursts(boot)
    return list({one.id: one for one in map(bursts.add, seen)}.values())


@given(told)
def test_the_source_that_saw_more_is_right(interleaved: list[tuple[str, int, float]]) -> None:
    """However the two are interleaved, as long as neither is silent for the pause: one burst, and no error twice."""
    at, seen, counts = 100.0, [], Counter({NVML: 0, KMSG: 0})
    for source, times, later in interleaved:
        at += later
        counts[source] += times
        seen.append(sighting(at, source, times=times))

    assert sum(one.count for one in after(*seen)) == max(counts.values())
    assert len(after(*seen)) <= 1


@given(told, st.lists(st.booleans()))
def test_no_restart_counts_an_error_again(interleaved: list[tuple[str, int, float]], restarts: list[bool]) -> None:
    """An agent that begins anew between any two sightings goes on with what the one before has stored."""
    at, seen = 100.0, []
    bursts, stored = Bursts("boot-1"), dict[str, Burst]()
    for number, (source, times, later) in enumerate(interleaved):
        at += later
        seen.append(sighting(at, source, times=times))
        if restarts[number : number + 1] == [True]:
            bursts = Bursts("boot-1")
            bursts.recall(stored.values())
        one = bursts.add(seen[-1])
        stored[one.id] = one

    assert [one.count for one in stored.values()] == [one.count for one in after(*seen)]


@given(st.lists(st.integers(1, 9), max_size=9), st.permutations([NVML, KMSG]))
def test_a_pause_ends_a_burst(repeats: list[int], order: list[str]) -> None:
    """After three quiet minutes the same error is another event, and both count."""
    seen = [sighting(1000.0 * number, source, times=times) for number, times in enumerate(repeats) for source in order]
    bursts = after(*seen)

    assert [one.count for one in bursts] == repeats
    assert all(one.sources == (NVML, KMSG) for one in bursts)


@pytest.mark.parametrize("numbered_first", [True, False])
def test_a_fall_told_in_words_and_by_number_is_one(*, numbered_first: bool) -> None:
    """Lines without the number add nothing to one with it, and are an Xid 79 where none comes."""
    words = [sighting(100.0 + number, KMSG, numbered=False, text=f"words {number}") for number in range(3)]
    number = sighting(101.0, KMSG, text="GPU has fallen off the bus.")
    (both,) = after(*([number, *words] if numbered_first else [*words, number]))
    (alone,) = after(*words)

    assert (both.count, alone.count, alone.code, alone.sources) == (1, 1, 79, (KMSG,))


def test_devices_codes_and_history_have_bursts_of_their_own() -> None:
    """At the same moment."""
    seen = [
        sighting(100.0),
        sighting(100.0, code=13),
        sighting(100.0, bus_id="00000000:2A:00.0"),
        sighting(100.0, historical=True),
        sighting(100.0, KMSG, kind=SXID, code=79),
    ]
    assert [one.count for one in after(*seen, *seen)] == [2] * len(seen)


def test_errors_of_several_instances_are_the_gpus() -> None:
    """One instance is named while nobody names another; once two were, none is."""
    first = partial(sighting, gpu_instance_id=1, compute_instance_id=0)
    second = partial(sighting, gpu_instance_id=2, compute_instance_id=0)
    seen = [first(100.0), sighting(101.0, KMSG), first(102.0, KMSG)]
    (one,) = after(*seen)
    (several,) = after(*seen, second(103.0, KMSG), first(104.0, KMSG))

    assert (one.gpu_instance_id, one.compute_instance_id) == (1, 0)
    assert several.gpu_instance_id is None


def test_a_burst_knows_its_ends_and_some_of_its_words() -> None:
    """First and last time by the sources' clocks, the first different lines, and the newest."""
    seen = [sighting(100.0 + number, KMSG, text=f"line {number % 7}") for number in range(14)]
    (one,) = after(sighting(101.5), *seen)

    assert (one.first_at, one.last_at, one.last_wall - one.first_wall) == (100.0, 113.0, 13.0)
    assert one.texts == tuple(f"line {number}" for number in range(MOST_TEXTS))
    assert one.text == "line 6"


def test_another_boot_begins_anew() -> None:
    """Its clock began again: times of the last boot mean nothing to it."""
    bursts = Bursts("boot-2")
    bursts.recall([burst(100)])
    assert bursts.add(sighting(101.0)).count == 1


def test_what_is_told_late_does_not_end_what_goes_on() -> None:
    """An old line stands by itself, and the burst of now is still open."""
    bursts = Bursts("boot-1")
    now = bursts.add(sighting(5000.0))
    old = bursts.add(sighting(100.0, KMSG))
    again = bursts.add(sighting(5001.0))

    assert (again.id, again.count) == (now.id, 2)
    assert (old.id != now.id, old.count) == (True, 1)


def test_memory_is_bounded() -> None:
    """Of too many different errors at once, those that were silent longest are ended early."""
    bursts = Bursts("boot-1")
    for number in range(3 * MOST_OPEN):
        bursts.add(sighting(float(number) / 100, code=number))

    assert len(bursts.end(0.0)) == MOST_OPEN
    assert bursts.add(sighting(30.0, code=3 * MOST_OPEN - 1)).count == 2
    assert bursts.end(30.0 + 2 * PAUSE) == frozenset()
