"""Replays give polls and other clients the recorded values, on every profile and with faults."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest
from gpumon_sim.profiles import PROFILES
from recorded import BEGAN, poll_of, record, recording, replay_capture, still, write_and_read
from simulated import answer


@pytest.mark.parametrize("profile", PROFILES)
def test_polls_of_a_replay_equal_the_recorded_polls(profile: str, tmp_path: Path) -> None:
    """The file has all values for a poll of every tier: GPUs, links and instances."""
    with recording(profile) as one:
        one.polls(3)
        capture = write_and_read(one.capture(), tmp_path)

    with replay_capture(capture) as node:
        poll = poll_of(node)
        snapshots = [poll.poll_later(all_tiers=True) for _ in one.snapshots]

    assert still(snapshots) == still(one.snapshots)
    assert any(reading.gpu is not None for reading in snapshots[-1].gpus)
    assert not capture.unrecorded


@pytest.mark.parametrize("profile", [name for name in PROFILES if name not in {"h100x16", "h200x8", "h100x8"}])
def test_a_recording_of_a_replay_equals_the_recording(profile: str, tmp_path: Path) -> None:
    """All calls of the survey, which are those of other clients, return the recorded values."""
    with recording(profile) as one:
        one.survey()
        one.polls(1)
        capture = write_and_read(one.capture(), tmp_path)

    with replay_capture(capture) as node, record(node) as again:
        again.survey()
        again.polls(1)
        second = again.capture()

    assert second.answers == capture.answers
    assert (second.signatures, second.handles) == (capture.signatures, capture.handles)


LOST = "gpus: {3: {lost: true, xids: [79]}}"


def test_a_gpu_is_lost_at_the_same_time_in_a_replay(tmp_path: Path) -> None:
    """The Xid is delivered once, other GPUs continue, and all later calls return GPU_IS_LOST."""
    with recording("h100x8", tmp_path / "scenario.yml") as one:
        one.survey()
        one.polls(2)
        one.edit(LOST)
        one.polls(3)
        capture = write_and_read(one.capture(), tmp_path)

    with replay_capture(capture) as node:
        poll = poll_of(node)
        snapshots, xids = [], []
        for _ in one.snapshots:
            snapshots.append(poll.poll_later(all_tiers=True))
            xids.append([event.code for event in poll.node.events.take()])
        handle = pynvml.nvmlDeviceGetHandleByIndex(3)

        assert still(snapshots) == still(one.snapshots)
        assert [snapshot.gpus[3].fault for snapshot in snapshots] == [None, None, "lost", "lost", "lost"]
        assert sorted(xids) == [[], [], [], [], [79]]
        assert answer(pynvml.nvmlDeviceGetName, handle) == pynvml.NVML_ERROR_GPU_IS_LOST  # not recorded
        assert answer(pynvml.nvmlDeviceGetName, pynvml.nvmlDeviceGetHandleByIndex(4)) == 0


def test_after_its_end_a_recording_keeps_its_last_values(tmp_path: Path) -> None:
    """No counter falls after the end; each keeps its last value in every process."""
    with recording("h100x1", tmp_path / "scenario.yml", "busy: true") as one:
        one.polls(4)
        capture = write_and_read(one.capture(), tmp_path)

    energy = []
    with replay_capture(capture) as node:
        poll = poll_of(node)
        for moment in (0.0, 2.0, 4.0, 5.0, 3600.0):
            node.now = BEGAN + moment
            [gpu] = poll.poll_all_tiers().gpus
            assert gpu.gpu is not None
            energy.append(gpu.gpu.energy_joules_total or 0.0)

    assert energy == sorted(energy)
    assert energy[1] < energy[2]
    assert energy[-1] == energy[-2]


def test_calls_that_were_not_recorded_are_missing_or_not_supported() -> None:
    """A function that was not recorded is absent; other arguments of a recorded function are not supported."""
    with recording("h100x1") as one:
        one.polls(1)
        capture = one.capture()

    with replay_capture(capture) as node:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(next(iter(node.node.pci_functions())).encode())
        assert answer(pynvml.nvmlDeviceGetBoardId, handle) == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
        assert answer(pynvml.nvmlDeviceGetClockInfo, handle, 9) == pynvml.NVML_ERROR_NOT_SUPPORTED
        assert answer(pynvml.nvmlDeviceGetClockInfo, None, 0) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        [value] = pynvml.nvmlDeviceGetFieldValues(handle, [7777])
        assert value.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED
        pynvml.nvmlShutdown()
        assert answer(pynvml.nvmlDeviceGetCount) == pynvml.NVML_ERROR_UNINITIALIZED
