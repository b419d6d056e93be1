"""Event sets: each Xid is delivered once to the sets that registered before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml
import pytest
from simulated import answer, simulated_node

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
    """Return GPU index and Xid of all pending events."""
    events: list[tuple[int, int]] = []
    while True:
        try:
            event = pynvml.nvmlEventSetWait_v2(waiting, 0)
        except pynvml.NVMLError_Timeout:
            return events
        assert event.eventType == XID
        assert (event.gpuInstanceId, event.computeInstanceId) == (0xFFFFFFFF, 0xFFFFFFFF)
        events.append((pynvml.nvmlDeviceGetIndex(event.device), event.eventData))


def test_xids_of_the_initial_file_are_not_delivered(scenario: Path) -> None:
    """Xids of the initial scenario are not delivered; each later Xid is delivered once to every set."""
    with simulated_node(scenario=scenario, text="gpus: {3: {xids: [79]}}", now=100.0) as simulation:
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
    """A timed Xid is delivered to a set created before its time, not to a later set."""
    text = "gpus: {2: {xids: [{xid: 94, at: 50}, {xid: 95, at: 10}]}}"
    with simulated_node(scenario=scenario, text=text, now=20.0) as simulation:
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


def test_only_registered_events_are_delivered(scenario: Path) -> None:
    with simulated_node(scenario=scenario, now=1.0) as simulation:
        handles = simulation.handles()
        some, none = event_set(handles[:2]), event_set(handles, types=pynvml.nvmlEventTypeDoubleBitEccError)
        simulation.now = 2.0
        simulation.edit('gpus: {"*": {xids: [63]}}')
        assert drain(some) == [(0, 63), (1, 63)]
        assert drain(none) == []


def test_one_unsupported_type_registers_nothing(scenario: Path) -> None:
    with simulated_node(scenario=scenario, now=1.0) as simulation:
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
    """After the last Xid of a lost GPU every wait returns GPU_IS_LOST until the set is rebuilt without it."""
    with simulated_node(scenario=scenario, now=1.0) as simulation:
        handles = simulation.handles()
        waiting = event_set(handles)
        simulation.now = 2.0
        simulation.edit("gpus: {7: {lost: true, xids: [79]}}")
        assert pynvml.nvmlEventSetWait_v2(waiting, 1000).eventData == 79
        assert answer(pynvml.nvmlEventSetWait_v2, waiting, 60_000) == pynvml.NVML_ERROR_GPU_IS_LOST
        assert answer(pynvml.nvmlDeviceRegisterEvents, handles[7], XID, waiting) == pynvml.NVML_ERROR_GPU_IS_LOST
        assert drain(event_set(handles[:7])) == []


def test_event_sets_end_when_freed_or_at_shutdown() -> None:
    """A freed set, or a set from before another initialization, is an invalid argument."""
    with simulated_node() as simulation:
        freed, open_set = event_set(simulation.handles()), event_set(simulation.handles())
        pynvml.nvmlEventSetFree(freed)
        assert answer(pynvml.nvmlEventSetWait_v2, freed, 0) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert answer(pynvml.nvmlEventSetFree, freed) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        pynvml.nvmlShutdown()
        assert answer(pynvml.nvmlEventSetWait_v2, open_set, 0) == pynvml.NVML_ERROR_UNINITIALIZED
        pynvml.nvmlInit()
        assert answer(pynvml.nvmlEventSetWait_v2, open_set, 0) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_xids_can_name_their_instance(scenario: Path) -> None:
    """With MIG on, an Xid has its instance if the driver reports it."""
    with simulated_node("h100migx8", scenario, now=1.0) as simulation:
        waiting = event_set(simulation.handles())
        simulation.now = 2.0
        simulation.edit("gpus: {4: {xids: [{xid: 94, gpu_instance: 2, compute_instance: 0}]}}")
        event = pynvml.nvmlEventSetWait_v2(waiting, 0)
        assert (event.eventData, event.gpuInstanceId, event.computeInstanceId) == (94, 2, 0)


def test_a_storm_lasts_for_its_configured_period(scenario: Path) -> None:
    """A storm of thousands of events per second is delivered to every set that registered before."""
    text = "gpus: {2: {xids: [{xid: 95, rate: 1000, at: 10, until: 10.5}]}}"
    with simulated_node(scenario=scenario, text=text, now=1.0) as simulation:
        waiting = event_set(simulation.handles())
        simulation.now = 10.25
        late = event_set(simulation.handles())
        assert drain(waiting) == [(2, 95)] * 250
        simulation.now = 100.0
        assert drain(waiting) == drain(late) == [(2, 95)] * 250
        assert drain(waiting) == []


def test_an_unread_event_set_keeps_a_limited_number_of_events(scenario: Path) -> None:
    text = "gpus: {2: {xids: [{xid: 95, rate: 5000, at: 10}]}}"
    with simulated_node(scenario=scenario, text=text, now=1.0) as simulation:
        waiting = event_set(simulation.handles())
        simulation.now = 12.0
        assert len(drain(waiting)) == 1000


def test_waits_can_fail_at_once(scenario: Path) -> None:
    """Waits return at once with an error, so that a reader without a pause would spin."""
    with simulated_node(scenario=scenario, text="fail: {nvmlEventSetWait_v2: UNKNOWN}") as simulation:
        waiting = event_set(simulation.handles())
        assert [answer(pynvml.nvmlEventSetWait_v2, waiting, 60_000) for _ in range(3)] == [999] * 3
