"""Replays of recordings, also of those in tests/captures."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest
from gpumon_sim import capture
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


FOLDER = Path(__file__).parents[3] / "tests" / "captures"
FILES = sorted(FOLDER.glob("*.capture"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_shipped_capture_is_readable_and_names_its_source(path: Path) -> None:
    """A capture is small, masked, complete and listed, and a poll reads all of its GPUs with power and name."""
    recorded = capture.read(path)

    assert recorded.header.masked
    assert not recorded.header.remarks
    assert recorded.header.simulated is None or recorded.header.simulated in PROFILES
    assert f"| `{path.name}` |" in (FOLDER / "README.md").read_text(encoding="utf-8")
    assert path.stat().st_size < 500_000
    with replay_capture(recorded) as node:
        gpus = poll_of(node).poll_all_tiers().gpus
        assert len(gpus) == len(node.node.pci_functions())
        assert all(gpu.gpu is not None and gpu.gpu.name for gpu in gpus)


def test_the_lost_gpu_of_a_shipped_capture_is_lost() -> None:
    """The GPU is lost after ten seconds, with an Xid for every set that registered before."""
    with replay_capture(capture.read(FOLDER / "h100x8-lost.capture")) as node:
        poll = poll_of(node)
        before = poll.poll_all_tiers()
        node.now = BEGAN + 30
        after, xids = poll.poll_all_tiers(), [(each.code, each.bus_id) for each in poll.node.events.take()]

    lost = after.gpus[3]
    assert [gpu.fault for gpu in before.gpus] == [None] * 8
    assert [gpu.fault for gpu in after.gpus] == [None] * 3 + ["lost"] + [None] * 4
    assert xids == [(79, lost.bus_id)]


def test_a_real_h100_in_training_is_read_as_nvidia_smi_showed_it() -> None:
    """Power at the limit of 700 W, the clock event that explains it, one process, no NVLink, margins from T.limit."""
    with replay_capture(capture.read(FOLDER / "h100x1-580.159.04-train.capture")) as node:
        poll = poll_of(node)
        poll.poll_all_tiers()
        node.now = BEGAN + 10
        snapshot = poll.poll_all_tiers()

    (reading,) = snapshot.gpus
    gpu = reading.gpu
    assert gpu is not None
    assert gpu.power_watts is not None
    assert 650 < gpu.power_watts < 720
    assert (gpu.power_limit_watts, gpu.processes, gpu.performance_state) == (700.0, 1.0, 0.0)
    assert (gpu.clock_event_active or {})["sw_power_cap"] == 1.0
    assert (gpu.temperature_slowdown_celsius, gpu.memory_temperature_max_celsius) == (89.0, 95.0)
    assert not reading.links
    assert not snapshot.errors
