"""A GPU is idle while no process uses it; the agent's own probe does not count as use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from reduced_reports import gpu_reading, gpu_state, reduce_all, snapshot

from gpumon.model.gpu import Gpu
from gpumon.model.snapshot import GpuReading
from gpumon.probe.core.result import ProbeResult
from gpumon.probe.core.state import AFTERGLOW_SECONDS
from gpumon.state.gpu_record import GAP_SECONDS, busy_rows, counted_increments, is_in_use
from gpumon.state.messages import ProbeStarted
from gpumon.state.report import Report

IDLE = Gpu(processes=0.0, utilization_ratio=0.0, memory_used_bytes=4e6, memory_reserved_bytes=5e8)
DONE = ProbeResult(id="one", probe="allreduce", outcome="ok", started=1e9)


def gpu(index: int = 0, **values: Any) -> GpuReading:
    """Return a reading of an idle GPU with these values."""
    return gpu_reading(
        index, gpu=replace(IDLE, **values), increments={"busy_seconds_total": values.get("utilization_ratio", 0.0)}
    )


def after(*polls: GpuReading, start: float = 100.0) -> Report:
    """Return the report after these readings of one GPU, one second apart."""
    report = None
    for n, reading in enumerate(polls):
        report = reduce_all(snapshot(reading, at=start + n), at=start + n, report=report)
    assert report is not None
    return report


def test_the_probe_is_excluded_from_utilization_integrals() -> None:
    """The integrals of utilization and of PCIe traffic exclude the probe; energy and throttle reasons include it."""
    assert set(busy_rows()) == {
        *("pcie_receive_bytes_total", "pcie_transmit_bytes_total"),
        *("busy_seconds_total", "sm_active_seconds_total"),
        *("tensor_active_seconds_total", "dram_active_seconds_total"),
    }


def test_a_gpu_is_idle_from_its_first_idle_reading() -> None:
    assert gpu_state(after(gpu(), gpu(), gpu()), "GPU-0").idle_since == 100.0
    assert gpu_state(after(gpu(processes=1.0), gpu(), gpu()), "GPU-0").idle_since == 101.0


@pytest.mark.parametrize(
    "use",
    [
        {"processes": 1.0},
        {"utilization_ratio": 0.5},
        {"memory_utilization_ratio": 0.2},
        {"memory_used_bytes": 5e8},
        {"memory_used_bytes": 2e9, "memory_reserved_bytes": None},
    ],
)
def test_every_sign_of_use_ends_the_idle_time(use: dict[str, Any]) -> None:
    used = after(gpu(), gpu(), gpu(**use))
    assert gpu_state(used, "GPU-0").idle_since is None
    assert gpu_state(reduce_all(snapshot(gpu(), at=103.0), at=103.0, report=used), "GPU-0").idle_since == 103.0


@pytest.mark.parametrize(
    "sign", [{"utilization_ratio": 0.02}, {"memory_used_bytes": 8e8, "memory_reserved_bytes": None}]
)
def test_readings_of_an_idle_gpu_are_not_use(sign: dict[str, Any]) -> None:
    """A wake-up by the poll and the memory that old drivers reserve do not count as use."""
    assert gpu_state(after(gpu(), gpu(**sign)), "GPU-0").idle_since == 100.0


def moving(nvlink: float, slow_at: float, pcie: float = 0.0) -> GpuReading:
    """Return a reading of an idle GPU with this NVLink counter, read at `slow_at`, and this PCIe traffic."""
    reading = gpu(nvlink_receive_bytes_total=nvlink)
    return replace(reading, watched=1.0, slow_at=slow_at, increments={"pcie_transmit_bytes_total": pcie})


def traffic(report: Report) -> float:
    return sum(gpu_state(report, "GPU-0").link_rates.values())


def test_traffic_over_the_links_is_use() -> None:
    """PCIe traffic since the last reading and NVLink traffic between two readings of its counters count as use."""
    quiet = (moving(1e12, 100.0), moving(1e12, 100.0))
    report = after(*quiet, moving(1e12 + 45e9, 115.0, pcie=1e9))
    assert traffic(report) == 4e9
    assert gpu_state(report, "GPU-0").idle_since is None
    assert traffic(after(*quiet)) == 0.0


def test_nvlink_traffic_remains_until_its_counters_are_read_again() -> None:
    """The counters are in the slow tier: in between, the last traffic is kept."""
    busy = (moving(1e12, 100.0), moving(1e12 + 45e9, 115.0), moving(1e12 + 45e9, 115.0))
    assert traffic(after(*busy)) == 3e9
    assert traffic(after(*busy, moving(1e12 + 45e9, 130.0))) == 0.0


def test_nvlink_traffic_of_the_probe_is_not_use() -> None:
    """The first reading of the counters after a run of the probe includes its traffic, and does not count as use."""
    report = after(moving(1e12, 100.0))
    report = reduce_all(ProbeStarted(id="one", gpus=("GPU-0",)), at=100.5, report=report)
    report = reduce_all(snapshot(moving(2e12, 101.0), at=101.0), at=101.0, report=report)
    report = reduce_all(DONE, at=101.5, report=report)
    for at, count, rate in ((116.0, 3e12, 0.0), (131.0, 3e12 + 15e9, 1e9)):
        report = reduce_all(snapshot(moving(count, at), at=at), at=at, report=report)
        assert traffic(report) == rate


def test_a_gap_between_readings_restarts_the_idle_time() -> None:
    report = reduce_all(snapshot(gpu(), at=100.0 + GAP_SECONDS + 1), at=100.0 + GAP_SECONDS + 1, report=after(gpu()))
    assert gpu_state(report, "GPU-0").idle_since == 100.0 + GAP_SECONDS + 1


def test_the_load_of_the_probe_does_not_count_as_use() -> None:
    """The GPUs of the probe ignore its load from its start until it disappears; other GPUs count theirs."""
    load = {"processes": 1.0, "utilization_ratio": 1.0, "memory_used_bytes": 4e9}
    report = reduce_all(snapshot(gpu(0), gpu(1)), at=100.0)
    report = reduce_all(ProbeStarted(id="one", gpus=("GPU-0",)), at=100.5, report=report)
    for at in (101.0, 102.0):
        report = reduce_all(snapshot(gpu(0, **load), gpu(1, **load), at=at), at=at, report=report)
    report = reduce_all(DONE, at=102.5, report=report)
    report = reduce_all(snapshot(gpu(0, **load), gpu(1), at=103.0), at=103.0, report=report)

    own, other = gpu_state(report, "GPU-0"), gpu_state(report, "GPU-1")
    assert (own.gpu.busy_seconds_total, own.gpu.observed_seconds_total, own.idle_since) == (0.0, 1.0, 100.0)
    assert (other.gpu.busy_seconds_total, other.gpu.observed_seconds_total, other.idle_since) == (2.0, 4.0, 103.0)
    assert own.gpu.utilization_ratio == 1.0  # the exported driver reading includes the load of the probe

    later = 102.5 + AFTERGLOW_SECONDS
    report = reduce_all(snapshot(gpu(0, **load), at=later), at=later, report=report)
    assert (gpu_state(report, "GPU-0").gpu.busy_seconds_total, gpu_state(report, "GPU-0").idle_since) == (1.0, None)


def test_a_run_that_waits_for_permission_has_no_load() -> None:
    report = reduce_all(ProbeStarted(id="one"), snapshot(gpu(utilization_ratio=1.0)), at=100.0)
    assert gpu_state(report, "GPU-0").gpu.busy_seconds_total == 1.0


LATCHED = replace(
    IDLE, name="NVIDIA B200", architecture="Blackwell", utilization_ratio=1.0, memory_utilization_ratio=0.0
)


def test_a_latched_utilization_is_idle() -> None:
    """From Blackwell on, full utilization of a GPU without process, memory in use and busy engines is no use."""
    assert not is_in_use(LATCHED, 0.0)
    assert not is_in_use(replace(LATCHED, sm_active_ratio=0.0), None)
    assert not is_in_use(replace(LATCHED, name="NVIDIA GB200", sm_active_ratio=0.0), None)
    assert not is_in_use(replace(LATCHED, architecture="Rubin"), 0.0)


@pytest.mark.parametrize(
    "sign",
    [
        {"processes": 1.0},
        {"processes": None},
        {"utilization_ratio": 0.9},
        {"memory_used_bytes": 4e9},
        {"memory_used_bytes": None},
        {"memory_utilization_ratio": 0.2},
        {"sm_active_ratio": 0.3},
        {"architecture": "Hopper"},
        {"architecture": None},
        {"name": "NVIDIA GB200"},
        {"name": "NVIDIA GB200", "sm_active_ratio": 0.02},
    ],
)
def test_any_other_sign_of_use_beside_full_utilization_is_use(sign: dict[str, Any]) -> None:
    """The utilization counts if a process, memory or the engines show use, or cannot be read."""
    assert is_in_use(replace(LATCHED, **sign), 0.0)


def test_traffic_beside_a_latched_utilization_is_use() -> None:
    assert is_in_use(LATCHED, 1e9)


def test_a_latched_utilization_is_not_counted_as_busy_time() -> None:
    """Busy seconds of a latched GPU stay 0, those of a GPU with work count."""
    increments = {"busy_seconds_total": 1.0, "memory_busy_seconds_total": 0.0}
    latched = gpu_reading(0, gpu=LATCHED, increments=increments)
    working = replace(latched, gpu=replace(LATCHED, processes=1.0))
    assert counted_increments(latched, own=False) == {**increments, "busy_seconds_total": 0.0}
    assert counted_increments(working, own=False) == increments
