"""Releases in the Report: what nobody looks at is neither well nor at fault, until somebody has looked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from folded import BUS, TERMS, UP, healthy, lost, of, polled, seen, told
from sample_windows import RELEASE, window

from gpumon.model.snapshot import DriverStatus, PciBus
from gpumon.model.time_window import NODE, TimeWindow, WindowsEnded
from gpumon.state.messages import Quarantine, SamplerStatus
from gpumon.state.released_gpus import RESUME_SECONDS
from gpumon.state.report import Report

DOWN = DriverStatus(up=False, error="LibRmVersionMismatch", remedy="reboot")


def release(bus_id: str = NODE) -> TimeWindow:
    return window(RELEASE, start=1e9, start_at=0.0, seconds=400.0, bus_id=bus_id)


def end(report: Report, at: float) -> WindowsEnded:
    return WindowsEnded(ids=frozenset(one.id for one in report.windows), by="api", wall=1e9 + at, at=at)


def after(*arrivals: object, at: float, began: str = NODE) -> Report:
    """A healthy node that was released at 101 s and until 300 s, and what came at `at`."""
    report = told(release(began), report=healthy(), at=101.0)
    report = told(end(report, 300.0), report=report, at=300.0)
    return told(*arrivals, report=report, at=at)  # type: ignore[arg-type]


def states(report: Report) -> set[tuple[float | None, str | None]]:
    return {(state.gpu.up, state.fault) for state in report.gpus}


def test_nothing_is_wrong_however_long_a_release_lasts() -> None:
    """No reading is too old while nobody is to take one."""
    report = told(release(), report=healthy(), at=101.0)
    for at in (102.0, 115.0, 300.0):
        report = told(UP, report=report, at=at)
        assert states(report) == {(None, None)}
        assert report.node.nvml_up is None


@pytest.mark.parametrize("began", [NODE, BUS[1]])
def test_what_is_taken_up_again_has_time_to_be_opened(began: str) -> None:
    """Until its first reading it stays as it was in the release; after longer than any call may take it is unknown."""
    waiting = after(UP, at=300 + RESUME_SECONDS - 1, began=began)
    assert of(waiting, "GPU-1").released
    assert of(waiting, "GPU-1").gpu.up is None
    assert waiting.node.release_end_timestamp_seconds == 1e9 + 400

    late = told(UP, report=waiting, at=300 + RESUME_SECONDS + 1)
    assert (of(late, "GPU-1").released, of(late, "GPU-1").fault) == (False, "unknown")
    assert late.node.release_end_timestamp_seconds is None


def test_each_gpu_is_back_with_its_own_first_reading() -> None:
    """A first poll tells what it has read so far: the others still have time, and the driver is up."""
    report = after(UP, replace(polled(seen(0)), complete=False), at=301.0)
    assert [(state.uuid, state.gpu.up) for state in report.gpus] == [("GPU-0", 1.0), ("GPU-1", None), ("GPU-2", None)]
    assert report.node.nvml_up == 1.0
    assert report.node.snapshot_timestamp_seconds is None
    slow = told(replace(polled(seen(1)), complete=False), report=report, at=370.0)
    slow = told(replace(polled(seen(0)), complete=False), report=slow, at=400.0)
    assert [(state.uuid, state.gpu.up) for state in slow.gpus if state.released] == [("GPU-2", None)]


def test_the_first_complete_poll_judges_them_all() -> None:
    """Who is not in it is missing, and who does not answer is at fault."""
    report = after(UP, polled(seen(0), lost(1)), at=301.0)
    assert [state.fault for state in report.gpus] == [None, "lost", "missing"]
    assert not any(state.released for state in report.gpus)
    assert report.node.snapshot_timestamp_seconds is not None


def test_a_driver_that_is_not_there_after_the_release_is_told_at_once() -> None:
    """As is a GPU whose first call hangs."""
    down = after(DOWN, at=301.0)
    assert down.node.nvml_up == 0.0
    assert states(down) == {(0.0, "unknown")}

    aside = {BUS[2]: Quarantine(fault="stuck", detail="nvmlDeviceGetHandleByPciBusId does not return", wall=1e9)}
    hung = after(UP, SamplerStatus(quarantined=aside), at=362.0)
    assert of(hung, "GPU-2").fault == "stuck"
    assert not of(hung, "GPU-2").released
    assert of(hung, "GPU-1").released


def test_a_released_gpu_is_not_missing_from_the_polls() -> None:
    """Its neighbours go on, and so does the driver."""
    report = told(release(BUS[1]), report=healthy(), at=101.0)
    report = told(polled(seen(0), seen(2)), report=report, at=130.0)
    assert [(state.gpu.up, state.gpu.released) for state in report.gpus] == [(1.0, 0.0), (None, 1.0), (1.0, 0.0)]
    assert report.node.nvml_up == 1.0


def test_a_released_gpu_that_nobody_has_opened_is_shown_by_its_address() -> None:
    """After a restart in the window; not when another driver has it by then."""
    bus = PciBus(functions=dict.fromkeys(BUS, "nvidia"))
    report = told(release(BUS[1]), bus, UP, polled(seen(0), seen(2)))
    assert [(state.index, state.gpu.released) for state in report.gpus] == [(0, 0.0), (1, 1.0), (2, 0.0)]
    given = told(PciBus(functions=dict.fromkeys(BUS, "nvidia") | {BUS[1]: "vfio-pci"}), report=report)
    assert [state.index for state in told(polled(seen(0), seen(2)), report=given).gpus] == [0, 2]


def test_a_gpu_given_to_another_driver_is_no_longer_expected() -> None:
    """The number learned falls with it, and with nothing else."""
    given = dict.fromkeys(BUS, "nvidia") | {BUS[2]: "vfio-pci"}
    report = told(PciBus(functions=given), polled(seen(0), seen(1)), report=healthy(), at=101.0)
    assert (report.node.gpus_expected, len(report.gpus)) == (2.0, 2)
    gone = told(PciBus(functions={BUS[0]: "nvidia", BUS[2]: "vfio-pci"}), report=report, at=102.0)
    assert gone.node.gpus_expected == 2.0


def test_expected_by_configuration_stays() -> None:
    """Whatever is released or given away."""
    report = told(release(), report=healthy(), terms=replace(TERMS, expected=5))
    assert report.node.gpus_expected == 5.0
