"""GPU performance monitoring (GPM): two samples per GPU, one call for all metrics, and errors of drivers."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_gpm import NO_PERMISSION, NOT_SUPPORTED, FakeGpm
from overlay import overlaid
from polled import Poll, open_poll

from gpumon.collectors.nvml.gpu_reader import Extent
from gpumon.model.gpu import Gpu

SM_ACTIVE, TENSOR, PCIE_SENT, PCIE_RECEIVED = 2, 5, 20, 21
LATCHED = "idle: true\ngpus: {0: {latched_utilization: true}}"
BUSY, IDLE = "{utilization: 80}", "{utilization: 0}"


@contextmanager
def open_poll_with_gpm(gpm: FakeGpm, profile: str = "h100x1", *, extent: Extent | None = None) -> Iterator[Poll]:
    with open_poll(profile, extent=extent) as poll, overlaid(gpm.functions()):
        yield poll


def first(poll: Poll) -> Gpu:
    """Return GPU 0 of a poll that is late enough for another sample."""
    gpu = poll.poll_later().gpus[0].gpu
    assert gpu is not None
    return gpu


def test_ratios_cover_the_time_between_two_polls() -> None:
    """Ratios are absent until there are two samples, then cover each interval; the older sample is overwritten."""
    gpm = FakeGpm(value=50.0)
    with open_poll_with_gpm(gpm) as poll:
        before = first(poll).sm_active_ratio
        gpm.values = {SM_ACTIVE: 25.0}
        after = first(poll)
        first(poll)

    assert (before, after.sm_active_ratio, after.dram_active_ratio) == (None, 0.25, 0.5)
    oldest, older, newest = gpm.taken
    assert oldest == newest != older
    assert gpm.asked == [(11, oldest, older), (11, older, oldest)]


def test_pcie_bytes_are_the_integral_of_the_measured_rate() -> None:
    """PCIe bytes are right at 50 GB/s, at which the driver's 32-bit counter wraps every 80 ms."""
    gpm = FakeGpm(values={PCIE_RECEIVED: 50e9 / (1 << 20), PCIE_SENT: 100.5})
    with open_poll_with_gpm(gpm) as poll:
        first(poll)
        reading = poll.poll_later().gpus[0]
    assert reading.gpu is not None
    assert reading.gpu.pcie_transmit_bytes_per_second == 100.5 * (1 << 20)
    assert reading.increments["pcie_receive_bytes_total"] == 50e9 * reading.watched


def test_gpm_takes_two_calls_per_gpu_and_poll() -> None:
    """One sample and one read per GPU: 2 x 8 calls on a full node."""
    with open_poll_with_gpm(FakeGpm(), "h100x8") as poll:
        poll.poll_later()
        poll.poll_later()
        with_it = _calls(poll)
    with open_poll_with_gpm(FakeGpm(), "h100x8", extent=Extent(gpm=False)) as poll:
        poll.poll_later()
        without = _calls(poll)

    assert with_it - without == 16


def _calls(poll: Poll) -> int:
    before = poll.page.calls
    poll.poll_later()
    return poll.page.calls - before


def test_samples_respect_the_min_interval_of_the_driver() -> None:
    """The second of two polls within 100 ms takes no sample, and the previous reading remains."""
    gpm = FakeGpm()
    with open_poll_with_gpm(gpm) as poll:
        poll.poll_later()
        poll.poll_later()
        turns = poll.node._slots[poll.poll().gpus[0].bus_id].turns
        assert turns is not None
        taken = len(gpm.taken)
        pair = turns.reader._monitoring._pair
        assert pair is not None
        pair._taken_at = (pair._taken_at or 0.0) + 3600.0  # as if it had been taken just now
        gpu = poll.poll().gpus[0].gpu

    assert gpu is not None
    assert gpu.sm_active_ratio == 0.5
    assert len(gpm.taken) == taken


def test_only_the_failed_metric_is_absent() -> None:
    """Each metric has its own return code and may be NaN."""
    gpm = FakeGpm(codes={SM_ACTIVE: NOT_SUPPORTED}, values={TENSOR: math.nan})
    with open_poll_with_gpm(gpm) as poll:
        first(poll)
        gpu = first(poll)
        errors = poll.poll_later().errors

    assert (gpu.sm_active_ratio, gpu.tensor_active_ratio, gpu.dram_active_ratio) == (None, None, 0.5)
    assert errors == {}


@pytest.mark.parametrize(("answered", "ratio"), [(100.4, 1.0), (300.0, None), (-5.0, None)])
def test_a_ratio_slightly_above_one_is_one(answered: float, ratio: float | None) -> None:
    """A ratio slightly above 1 is 1, because units are sampled at different times; a larger one is invalid."""
    with open_poll_with_gpm(FakeGpm(value=answered)) as poll:
        first(poll)
        assert first(poll).sm_active_ratio == ratio


def test_without_support_nothing_is_sampled() -> None:
    """GPUs before Hopper and guests with a part of a GPU have no samples."""
    gpm = FakeGpm(supported=0)
    with open_poll_with_gpm(gpm) as poll:
        first(poll)
        snapshot = poll.poll_later()

    assert (gpm.taken, snapshot.errors, snapshot.denied) == ([], {}, ())


def test_missing_permission_is_reported_as_one_collector() -> None:
    """Missing permission, which can change at run time, is no error and is retried."""
    gpm = FakeGpm()
    with open_poll_with_gpm(gpm) as poll:
        first(poll)
        gpm.refusal = NO_PERMISSION
        denied = poll.poll_later()
        gpm.refusal = 0
        first(poll)
        allowed = poll.poll_later()

    assert (denied.denied, denied.errors) == (("gpm",), {})
    assert denied.gpus[0].gpu is not None
    assert denied.gpus[0].gpu.sm_active_ratio is None
    assert allowed.denied == ()
    assert allowed.gpus[0].gpu is not None
    assert allowed.gpus[0].gpu.sm_active_ratio == 0.5


def test_all_zeros_on_a_busy_gpu_are_invalid(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All zeros on a busy GPU, a driver defect, are absent, counted, and logged once."""
    gpm = FakeGpm(value=0.0)
    with open_poll("h100x1", f"gpus: {{0: {{set: {BUSY}}}}}", folder=tmp_path) as poll, overlaid(gpm.functions()):
        first(poll)
        with caplog.at_level(logging.INFO):
            silent = [first(poll).sm_active_ratio for _ in range(4)]
            errors = poll.poll_later().errors
            gpm.value = 70.0
            spoken = first(poll).sm_active_ratio

    assert silent == [0.0, 0.0, None, None]
    assert errors == {"fast,SilentZero": 1.0}
    assert spoken == 0.7
    assert len([record for record in caplog.records if "engine" in record.message]) == 2


def test_zeros_on_an_idle_gpu_are_valid(tmp_path: Path) -> None:
    with (
        open_poll("h100x1", f"gpus: {{0: {{set: {IDLE}}}}}", folder=tmp_path) as poll,
        overlaid(FakeGpm(0.0).functions()),
    ):
        ratios = [first(poll).sm_active_ratio for _ in range(2)]
        poll.simulation.edit(f"gpus: {{0: {{set: {BUSY}}}}}")
        ratios.append(first(poll).sm_active_ratio)

    assert ratios == [None, 0.0, 0.0]


def test_zeros_without_a_process_are_valid(tmp_path: Path) -> None:
    """A utilization without a process is latched: the zeros of the engines are right, and no error is counted."""
    with open_poll("b200x8", LATCHED, folder=tmp_path) as poll:
        gpus = [first(poll) for _ in range(6)]
        errors = poll.poll_later().errors

    assert [gpu.utilization_ratio for gpu in gpus] == [1.0] * 6
    assert [gpu.sm_active_ratio for gpu in gpus[1:]] == [0.0] * 5
    assert errors == {}


def test_samples_are_freed(tmp_path: Path) -> None:
    """Samples are freed when a GPU is lost and before NVML is shut down."""
    gpm = FakeGpm()
    with open_poll("h100x8", folder=tmp_path) as poll, overlaid(gpm.functions()):
        poll.poll_later()
        assert len(gpm.living) == 16
        poll.simulation.edit("gpus: {3: {lost: true}}")
        poll.poll_later()
        assert len(gpm.living) == 14
        poll.node.close()

    assert gpm.living == set()
