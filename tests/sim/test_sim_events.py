"""Event sets: Xids arrive once, at those who asked for them before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml
import pytest
from simulated import answer, simulated

XID = pynvml.nvmlEventTypeXidCriticalError


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    return tmp_path / "scenario.yml"


def event_set(handles: list[Any], types: int = XID) -> Any:
    waiting = pynvml.nvmlEventSetCreate()
    for handle in handles:
        pynvml.nvmlDeviceRegisterEvents(handle, types, waiting)
    return waiting


def drain(waiting: Any) -> list[tuple[int, int]]:
    """Index of the GPU and Xid of all that has arrived by now."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            event = pynvml.nvmlEventSetWait_v2(waiting, 0)
        except pynvml.NVMLError_Timeout:
            return found
        assert event.eventType == XID
        assert (event.gpuInstanceId, event.computeInstanceId) == (0xFFFFFFFF, 0xFFFFFFFF)
        found.append((pynvml.nvmlDeviceGetIndex(event.device), event.eventData))


def test_what_the_file_had_at_first_is_history(scenario: Path) -> None:
    """Xids of the first reading are not delivered; those of a later one are, once, to every set."""
    with simulated(scenario=scenario, text="gpus: {3: {xids: [79]}}", now=100.0) as simulation:
        one, other = event_set(simulation.handles()), event_set(simulation.handles())
        assert drain(one) == []
        simulation.now = 101.0
        simulation.edit("gpus: {3: {xids: [79, 48, 79]}, 5: {xids: [13]}}")
        assert sorted(drain(one)) == [(3, 48), (3, 79), (5, 13)]
        assert drain(one) == []
        assert sorted(drain(other)) == [(3, 48), (3, 79), (5, 13)]
        simulation.now = 102.0
        simulation.edit("gpus: {3: {xids: [79]}}")
        assert drain(one) == []
        simulation.edit("gpus: {3: {xids: [79, 79]}}")
        assert drain(one) == [(3, 79)]


def test_timed_xids_come_when_their_time_has_passed(scenario: Path) -> None:
    """A set that was there before gets it, one that came later does not."""
    text = "gpus: {2: {xids: [{xid: 94, at: 50}, {xid: 95, at: 10}]}}"
    with simulated(scenario=scenario, text=text, now=20.0) as simulation:
        early = event_set(simulation.handles())
        simulation.now = 49.9
        assert drain(early) == []
        simulation.now = 50.0
        assert drain(early) == [(2, 94)]
        assert drain(early) == []
        assert drain(event_set(simulation.handles())) == []
        simulation.edit("gpus: {2: {xids: [{xid: 31, at: 51}, {xid: 94, at: 50}, {xid: 94, at: 50}]}}")
        simulation.now = 52.0
        assert drain(early) == [(2, 94), (2, 31)]


def test_only_what_was_registered_is_delivered(scenario: Path) -> None:
    """Other GPUs and other types of event stay away."""
    with simulated(scenario=scenario, now=1.0) as simulation:
        handles = simulation.handles()
        some, none = event_set(handles[:2]), event_set(handles, types=pynvml.nvmlEventTypeDoubleBitEccError)
        simulation.now = 2.0
        simulation.edit('gpus: {"*": {xids: [63]}}')
        assert drain(some) == [(0, 63), (1, 63)]
        assert drain(none) == []


def test_one_unsupported_type_registers_nothing(scenario: Path) -> None:
    """The mask has to be cut to what the GPU supports."""
    with simulated(scenario=scenario, now=1.0) as simulation:
        handle = simulation.handles()[0]
        supported = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
        assert supported & XID
        waiting = pynvml.nvmlEventSetCreate()
        code = answer(pynvml.nvmlDeviceRegisterEvents, handle, supported | 0x80000000, waiting)
        assert code == pynvml.NVML_ERROR_NOT_SUPPORTED
        simulation.now = 2.0
        simulation.edit("gpus: {0: {xids: [13]}}")
        assert drain(waiting) == []


def test_a_lost_gpu_ends_every_wait_at_once(scenario: Path) -> None:
    """Its last Xid comes first; then waiting answers GPU_IS_LOST until the set is rebuilt without it."""
    with simulated(scenario=scenario, now=1.0) as simulation:
        handles = simulation.handles()
        waiting = event_set(handles)
        simulation.now = 2.0
        simulation.edit("gpus: {7: {lost: true, xids: [79]}}")
        assert pynvml.nvmlEventSetWait_v2(waiting, 1000).eventData == 79
        assert answer(pynvml.nvmlEventSetWait_v2, waiting, 60_000) == pynvml.NVML_ERROR_GPU_IS_LOST
        assert answer(pynvml.nvmlDeviceRegisterEvents, handles[7], XID, waiting) == pynvml.NVML_ERROR_GPU_IS_LOST
        assert drain(event_set(handles[:7])) == []


def test_sets_end_by_being_freed_or_with_the_library() -> None:
    """A freed set is an invalid argument; after another initialisation, so is an old one."""
    with simulated() as simulation:
        freed, kept = event_set(simulation.handles()), event_set(simulation.handles())
        pynvml.nvmlEventSetFree(freed)
        assert answer(pynvml.nvmlEventSetWait_v2, freed, 0) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert answer(pynvml.nvmlEventSetFree, freed) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        pynvml.nvmlShutdown()
        assert answer(pynvml.nvmlEventSetWait_v2, kept, 0) == pynvml.NVML_ERROR_UNINITIALIZED
        pynvml.nvmlInit()
        assert answer(pynvml.nvmlEventSetWait_v2, kept, 0) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_xids_may_name_the_instance_they_happened_in(scenario: Path) -> None:
    """On a GPU that is cut up, the driver often knows."""
    with simulated("h100migx8", scenario, now=1.0) as simulation:
        waiting = event_set(simulation.handles())
        simulation.now = 2.0
        simulation.edit("gpus: {4: {xids: [{xid: 94, gpu_instance: 2, compute_instance: 0}]}}")
        event = pynvml.nvmlEventSetWait_v2(waiting, 0)
        assert (event.eventData, event.gpuInstanceId, event.computeInstanceId) == (94, 2, 0)


def test_a_storm_goes_on_as_long_as_it_is_said_to(scenario: Path) -> None:
    """Thousands a second from one time to another; those who wait see each that came since they registered."""
    text = "gpus: {2: {xids: [{xid: 95, rate: 1000, at: 10, until: 10.5}]}}"
    with simulated(scenario=scenario, text=text, now=1.0) as simulation:
        waiting = event_set(simulation.handles())
        simulation.now = 10.25
        late = event_set(simulation.handles())
        assert drain(waiting) == [(2, 95)] * 250
        simulation.now = 100.0
        assert drain(waiting) == drain(late) == [(2, 95)] * 250
        assert drain(waiting) == []


def test_of_a_storm_that_nobody_reads_the_driver_keeps_the_end(scenario: Path) -> None:
    """What a set holds is bounded: the rest is lost without a word."""
    text = "gpus: {2: {xids: [{xid: 95, rate: 5000, at: 10}]}}"
    with simulated(scenario=scenario, text=text, now=1.0) as simulation:
        waiting = event_set(simulation.handles())
        simulation.now = 12.0
        assert len(drain(waiting)) == 1000


def test_waiting_may_fail_at_once_and_every_time(scenario: Path) -> None:
    """A reader that asks again without a pause would spin."""
    with simulated(scenario=scenario, text="fail: {nvmlEventSetWait_v2: UNKNOWN}") as simulation:
        waiting = event_set(simulation.handles())
        assert [answer(pynvml.nvmlEventSetWait_v2, waiting, 60_000) for _ in range(3)] == [999] * 3
