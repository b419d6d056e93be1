"""When a GPU is seen to have been reset: what its driver counts begins anew."""

from __future__ import annotations

from dataclasses import replace

from folded import UP, lost, of, polled, seen, told

from gpumon.model.gpu import Gpu
from gpumon.model.snapshot import GpuReading
from gpumon.state.report import Report


def reads(errors: float | None = None, energy: float | None = None) -> GpuReading:
    counted = None if errors is None else {"corrected,dram": errors}
    return seen(0, gpu=Gpu(name="NVIDIA T4", ecc_errors_total=counted, energy_joules_total=energy))


def after(*polls: GpuReading, every: float = 1.0) -> Report:
    report = told(UP)
    for second, one in enumerate(polls):
        at = 100.0 + second * every
        report = told(polled(replace(one, bus_id=seen(0).bus_id), at=at), at=at, report=report)
    return report


def reset_at(*polls: GpuReading, every: float = 1.0) -> float | None:
    return of(after(*polls, every=every), "GPU-0").reset_at


def test_energy_that_began_anew_is_a_reset_at_its_second_reading() -> None:
    """One lower value alone may be a wrong one."""
    assert reset_at(reads(energy=1e6), reads(energy=5.0)) is None
    assert reset_at(reads(energy=1e6), reads(energy=5.0), reads(energy=6.0)) == 102.0
    assert reset_at(reads(energy=1e6), reads(energy=1e6 - 1), reads(energy=1e6 + 9)) is None


def test_without_energy_errors_that_fell_while_it_was_away_are_the_proof() -> None:
    """Of a GPU that was faulted, or that nobody read for a while; not of one that was read all the time."""
    assert reset_at(reads(40.0), lost(0), reads(0.0)) == 102.0
    assert reset_at(reads(40.0), reads(0.0), every=60.0) == 160.0
    assert reset_at(reads(40.0), reads(0.0), reads(0.0)) is None
    assert reset_at(reads(40.0), lost(0), reads(40.0)) is None
    assert reset_at(reads(0.0), lost(0), reads(0.0)) is None


def test_as_many_errors_after_a_reset_as_before_it_are_new() -> None:
    """Its energy tells that the driver counts from the beginning; a board fails again as it did before."""
    report = after(reads(2.0, 1e6), lost(0), reads(0.0, 5.0), reads(0.0, 6.0), reads(2.0, 7.0))
    assert of(report, "GPU-0").gpu.ecc_errors_total == {"corrected,dram": 4.0}


def test_where_energy_is_counted_it_alone_tells() -> None:
    """Errors may be cleared by a person."""
    assert reset_at(reads(40.0, 1e6), lost(0), reads(0.0, 1e6 + 5), reads(0.0, 1e6 + 6)) is None
