"""Since when nobody uses a GPU, and that the agent's own probe is nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from folded import of, polled, seen, told

from gpumon.model.gpu import Gpu
from gpumon.model.snapshot import GpuReading
from gpumon.probe.core.result import ProbeResult
from gpumon.probe.core.state import AFTERGLOW_SECONDS
from gpumon.state.gpu_idle import GAP_SECONDS, busy_rows
from gpumon.state.messages import ProbeEnded, ProbeStarted
from gpumon.state.report import Report

IDLE = Gpu(processes=0.0, utilization_ratio=0.0, memory_used_bytes=4e6, memory_reserved_bytes=5e8)
DONE = ProbeResult(id="one", probe="allreduce", outcome="ok", started=1e9)


def gpu(index: int = 0, **values: Any) -> GpuReading:
    """An idle GPU but for this, in a poll a second after the last."""
    return seen(
        index, gpu=replace(IDLE, **values), increments={"busy_seconds_total": values.get("utilization_ratio", 0.0)}
    )


def after(*polls: GpuReading, start: float = 100.0) -> Report:
    """The same GPU in polls a second apart."""
    report = None
    for n, one in enumerate(polls):
        report = told(polled(one, at=start + n), at=start + n, report=report)
    assert report is not None
    return report


def test_what_is_integrated_for_being_used_is_what_the_probe_is_left_out_of() -> None:
    """Energy and the reasons that hold clocks down are what they are, whoever uses the GPU."""
    assert set(busy_rows()) == {
        *("busy_seconds_total", "sm_active_seconds_total"),
        *("tensor_active_seconds_total", "dram_active_seconds_total"),
    }


def test_a_gpu_is_idle_from_the_first_reading_on_that_shows_nobody() -> None:
    """At the agent's start nothing is known of before."""
    assert of(after(gpu(), gpu(), gpu()), "GPU-0").idle_since == 100.0
    assert of(after(gpu(processes=1.0), gpu(), gpu()), "GPU-0").idle_since == 101.0


@pytest.mark.parametrize(
    "use",
    [
        {"processes": 1.0},
        {"utilization_ratio": 0.5},
        {"memory_used_bytes": 5e8},
        {"memory_used_bytes": 2e9, "memory_reserved_bytes": None},
    ],
)
def test_any_sign_of_use_ends_idleness(use: dict[str, Any]) -> None:
    """And what it ended begins anew after it."""
    used = after(gpu(), gpu(), gpu(**use))
    assert of(used, "GPU-0").idle_since is None
    assert of(told(polled(gpu(), at=103.0), at=103.0, report=used), "GPU-0").idle_since == 103.0


@pytest.mark.parametrize(
    "sign", [{"utilization_ratio": 0.02}, {"memory_used_bytes": 8e8, "memory_reserved_bytes": None}]
)
def test_what_idle_gpus_show_is_no_use(sign: dict[str, Any]) -> None:
    """A look wakes some of them, and old drivers count their own memory with the rest."""
    assert of(after(gpu(), gpu(**sign)), "GPU-0").idle_since == 100.0


def test_traffic_over_the_links_is_use() -> None:
    """Both ways, over NVLink and PCIe, between two readings."""
    quiet = gpu(nvlink_receive_bytes_total=1e12, pcie_transmit_bytes_total=1e9)
    moving = gpu(nvlink_receive_bytes_total=1e12 + 3e9, pcie_transmit_bytes_total=1e9 + 1e9)
    report = after(quiet, quiet, moving)
    assert (of(report, "GPU-0").traffic, of(report, "GPU-0").idle_since) == (4e9, None)
    assert of(after(quiet, quiet), "GPU-0").traffic == 0.0


def test_after_a_time_without_readings_nobody_knows() -> None:
    """A job may have come and gone."""
    report = told(polled(gpu(), at=100.0 + GAP_SECONDS + 1), at=100.0 + GAP_SECONDS + 1, report=after(gpu()))
    assert of(report, "GPU-0").idle_since == 100.0 + GAP_SECONDS + 1


def test_the_probes_own_load_is_left_out_of_what_is_busy_and_idle() -> None:
    """On the GPUs that it uses, from its start until they no longer show it; on the others all goes on."""
    load = {"processes": 1.0, "utilization_ratio": 1.0, "memory_used_bytes": 4e9}
    report = told(polled(gpu(0), gpu(1)), at=100.0)
    report = told(ProbeStarted(id="one", gpus=("GPU-0",)), at=100.5, report=report)
    for at in (101.0, 102.0):
        report = told(polled(gpu(0, **load), gpu(1, **load), at=at), at=at, report=report)
    report = told(ProbeEnded(result=DONE), at=102.5, report=report)
    report = told(polled(gpu(0, **load), gpu(1), at=103.0), at=103.0, report=report)

    own, other = of(report, "GPU-0"), of(report, "GPU-1")
    assert (own.gpu.busy_seconds_total, own.gpu.observed_seconds_total, own.idle_since) == (0.0, 1.0, 100.0)
    assert (other.gpu.busy_seconds_total, other.gpu.observed_seconds_total, other.idle_since) == (2.0, 4.0, 103.0)
    assert own.gpu.utilization_ratio == 1.0  # what the driver says is told as it is

    later = 102.5 + AFTERGLOW_SECONDS
    report = told(polled(gpu(0, **load), at=later), at=later, report=report)
    assert (of(report, "GPU-0").gpu.busy_seconds_total, of(report, "GPU-0").idle_since) == (1.0, None)


def test_a_run_that_is_not_cleared_yet_loads_nothing() -> None:
    """While the scheduler is asked, whoever uses the GPUs is not the probe."""
    report = told(ProbeStarted(id="one"), polled(gpu(utilization_ratio=1.0)), at=100.0)
    assert of(report, "GPU-0").gpu.busy_seconds_total == 1.0
