"""Releases in the report: a released GPU is neither healthy nor at fault until its first reading."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reduced_reports import BUS, TERMS, UP, gpu_reading, gpu_state, healthy, lost_reading, reduce_all, snapshot
from sample_windows import RELEASE, window

from gpumon.model.instant import Instant
from gpumon.model.snapshot import DriverStatus, PciBus, Quarantine, SamplerStatus
from gpumon.model.time_window import NODE, TimeWindow, WindowsEnded
from gpumon.state.gpu_section import RESUME_SECONDS
from gpumon.state.report import Report

DOWN = DriverStatus(up=False, error="LibRmVersionMismatch", remedy="reboot")


def release(bus_id: str = NODE) -> TimeWindow:
    return window(RELEASE, start=1e9, start_at=0.0, seconds=400.0, bus_id=bus_id)


def end(report: Report, at: float) -> WindowsEnded:
    return WindowsEnded(ids=frozenset(active.id for active in report.windows), by="api", time=Instant("", at, 1e9 + at))


def after(*arrivals: object, at: float, began: str = NODE) -> Report:
    """Return the report of a node released at 101 s and resumed at 300 s, after these messages at `at`."""
    report = reduce_all(release(began), report=healthy(), at=101.0)
    report = reduce_all(end(report, 300.0), report=report, at=300.0)
    return reduce_all(*arrivals, report=report, at=at)  # type: ignore[arg-type]


def states(report: Report) -> set[tuple[float | None, str | None]]:
    return {(state.gpu.up, state.fault) for state in report.gpus}


def test_a_release_of_any_length_raises_no_fault() -> None:
    """A release makes no reading stale."""
    report = reduce_all(release(), report=healthy(), at=101.0)
    for at in (102.0, 115.0, 300.0):
        report = reduce_all(UP, report=report, at=at)
        assert states(report) == {(None, None)}
        assert report.node.nvml_up is None


@pytest.mark.parametrize("began", [NODE, BUS[1]])
def test_a_resumed_gpu_has_time_for_its_first_reading(began: str) -> None:
    """A resumed GPU stays released until its first reading, and is unknown after the resume timeout."""
    waiting = after(UP, at=300 + RESUME_SECONDS - 1, began=began)
    assert gpu_state(waiting, "GPU-1").released
    assert gpu_state(waiting, "GPU-1").gpu.up is None
    assert waiting.node.release_end_timestamp_seconds == 1e9 + 400

    late = reduce_all(UP, report=waiting, at=300 + RESUME_SECONDS + 1)
    assert (gpu_state(late, "GPU-1").released, gpu_state(late, "GPU-1").fault) == (False, "unknown")
    assert late.node.release_end_timestamp_seconds is None


def test_each_gpu_resumes_at_its_first_reading() -> None:
    """A first partial poll resumes only the GPUs in it, and the driver is up."""
    report = after(UP, replace(snapshot(gpu_reading(0)), complete=False), at=301.0)
    assert [(state.uuid, state.gpu.up) for state in report.gpus] == [("GPU-0", 1.0), ("GPU-1", None), ("GPU-2", None)]
    assert report.node.nvml_up == 1.0
    assert report.node.snapshot_timestamp_seconds is None
    slow = reduce_all(replace(snapshot(gpu_reading(1)), complete=False), report=report, at=370.0)
    slow = reduce_all(replace(snapshot(gpu_reading(0)), complete=False), report=slow, at=400.0)
    assert [(state.uuid, state.gpu.up) for state in slow.gpus if state.released] == [("GPU-2", None)]


def test_the_first_complete_poll_resumes_every_gpu() -> None:
    """After the first complete poll an absent GPU is missing, and a GPU without an answer is at fault."""
    report = after(UP, snapshot(gpu_reading(0), lost_reading(1)), at=301.0)
    assert [state.fault for state in report.gpus] == [None, "lost", "missing"]
    assert not any(state.released for state in report.gpus)
    assert report.node.snapshot_timestamp_seconds is not None


def test_a_missing_driver_after_a_release_is_reported_at_once() -> None:
    """A driver that is down, or a GPU whose first call hangs, is reported at once."""
    down = after(DOWN, at=301.0)
    assert down.node.nvml_up == 0.0
    assert states(down) == {(0.0, "unknown")}

    quarantined = {BUS[2]: Quarantine(fault="stuck", detail="nvmlDeviceGetHandleByPciBusId does not return", wall=1e9)}
    hung = after(UP, SamplerStatus(quarantined=quarantined), at=362.0)
    assert gpu_state(hung, "GPU-2").fault == "stuck"
    assert not gpu_state(hung, "GPU-2").released
    assert gpu_state(hung, "GPU-1").released


def test_a_released_gpu_is_not_missing_from_the_polls() -> None:
    """A released GPU is not missing; the driver and the other GPUs continue."""
    report = reduce_all(release(BUS[1]), report=healthy(), at=101.0)
    report = reduce_all(snapshot(gpu_reading(0), gpu_reading(2)), report=report, at=130.0)
    assert [(state.gpu.up, state.gpu.released) for state in report.gpus] == [(1.0, 0.0), (None, 1.0), (1.0, 0.0)]
    assert report.node.nvml_up == 1.0


def test_an_unopened_released_gpu_is_listed_by_its_address() -> None:
    """A released GPU after a restart is listed by its address unless another driver has it."""
    bus = PciBus(functions=dict.fromkeys(BUS, "nvidia"))
    report = reduce_all(release(BUS[1]), bus, UP, snapshot(gpu_reading(0), gpu_reading(2)))
    assert [(state.index, state.gpu.released) for state in report.gpus] == [(0, 0.0), (1, 1.0), (2, 0.0)]
    given = reduce_all(PciBus(functions=dict.fromkeys(BUS, "nvidia") | {BUS[1]: "vfio-pci"}), report=report)
    assert [state.index for state in reduce_all(snapshot(gpu_reading(0), gpu_reading(2)), report=given).gpus] == [0, 2]


def test_a_gpu_given_to_another_driver_is_no_longer_expected() -> None:
    """A GPU bound to another driver lowers the expected count; a GPU that leaves the bus does not."""
    given = dict.fromkeys(BUS, "nvidia") | {BUS[2]: "vfio-pci"}
    report = reduce_all(PciBus(functions=given), snapshot(gpu_reading(0), gpu_reading(1)), report=healthy(), at=101.0)
    assert (report.node.gpus_expected, len(report.gpus)) == (2.0, 2)
    gone = reduce_all(PciBus(functions={BUS[0]: "nvidia", BUS[2]: "vfio-pci"}), report=report, at=102.0)
    assert gone.node.gpus_expected == 2.0


def test_a_configured_expected_count_remains() -> None:
    report = reduce_all(release(), report=healthy(), terms=replace(TERMS, expected=5))
    assert report.node.gpus_expected == 5.0
