"""A reset of a GPU is detected because the counters of its driver restart."""

from __future__ import annotations

from dataclasses import replace

from reduced_reports import UP, gpu_reading, gpu_state, lost_reading, reduce_all, snapshot

from gpumon.model.gpu import Gpu
from gpumon.model.snapshot import GpuReading
from gpumon.state.report import Report


def reads(errors: float | None = None, energy: float | None = None) -> GpuReading:
    counted = None if errors is None else {"corrected,dram": errors}
    return gpu_reading(0, gpu=Gpu(name="NVIDIA T4", ecc_errors_total=counted, energy_joules_total=energy))


def after(*polls: GpuReading, every: float = 1.0) -> Report:
    report = reduce_all(UP)
    for second, reading in enumerate(polls):
        at = 100.0 + second * every
        report = reduce_all(snapshot(replace(reading, bus_id=gpu_reading(0).bus_id), at=at), at=at, report=report)
    return report


def reset_at(*polls: GpuReading, every: float = 1.0) -> float | None:
    return gpu_state(after(*polls, every=every), "GPU-0").reset_at


def test_energy_that_restarts_is_a_reset_at_its_second_reading() -> None:
    """A reset is detected at the second lower energy reading, because one alone may be wrong."""
    assert reset_at(reads(energy=1e6), reads(energy=5.0)) is None
    assert reset_at(reads(energy=1e6), reads(energy=5.0), reads(energy=6.0)) == 102.0
    assert reset_at(reads(energy=1e6), reads(energy=1e6 - 1), reads(energy=1e6 + 9)) is None


def test_without_energy_errors_that_fell_over_a_gap_are_a_reset() -> None:
    """Without energy, lower errors prove a reset only after a fault or a gap between readings."""
    assert reset_at(reads(40.0), lost_reading(0), reads(0.0)) == 102.0
    assert reset_at(reads(40.0), reads(0.0), every=60.0) == 160.0
    assert reset_at(reads(40.0), reads(0.0), reads(0.0)) is None
    assert reset_at(reads(40.0), lost_reading(0), reads(40.0)) is None
    assert reset_at(reads(0.0), lost_reading(0), reads(0.0)) is None


def test_errors_after_a_reset_are_added() -> None:
    """After a reset that the energy counter shows, the same number of errors counts again."""
    report = after(reads(2.0, 1e6), lost_reading(0), reads(0.0, 5.0), reads(0.0, 6.0), reads(2.0, 7.0))
    assert gpu_state(report, "GPU-0").gpu.ecc_errors_total == {"corrected,dram": 4.0}


def test_energy_has_precedence_over_errors() -> None:
    """If energy is counted, lower error counts alone are no reset, because an operator may clear them."""
    assert reset_at(reads(40.0, 1e6), lost_reading(0), reads(0.0, 1e6 + 5), reads(0.0, 1e6 + 6)) is None
