"""The running agent on a host that is suspended and whose wall clock is stepped: neither is a fault of a GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from agents import AgentProcess, Metrics, eventually
from scrapes import Scrapes, falls
from stepped_clock import SteppedClock

pytestmark = pytest.mark.slow

PAUSE = 12.0
"""Longer than the maximum age of a reading, the deadline of a driver call, and the longest gap that is integrated."""
DAY = 86_400
AT_WORK = {"busy": True, "delay": {"nvmlDeviceGetUtilizationRates": 0.05}}
"""Scenario in which the sampler is in a driver call most of the time."""


@pytest.fixture
def clock(tmp_path: Path) -> SteppedClock:
    return SteppedClock(tmp_path)


@pytest.fixture
def agent(tmp_path: Path, clock: SteppedClock) -> Iterator[AgentProcess]:
    one = AgentProcess(tmp_path, environment=clock.environment)
    one.simulate(AT_WORK)
    one.start()
    yield one
    one.stop()


def await_evaluation(agent: AgentProcess) -> None:
    """Wait until the checks have been evaluated with the current readings."""
    before = agent.get("/api/v1/health")["evaluated"]
    eventually(lambda: agent.get("/api/v1/health")["evaluated"] != before)


def assert_undisturbed(agent: AgentProcess, scrapes: Scrapes) -> None:
    """Check that every scrape shows all GPUs, no child was replaced, no counter decreased and no alert began."""
    pages = [page for _, page in scrapes.pages]
    assert not scrapes.failed
    for page in pages:
        assert list(page.gpus("gpumon_gpu_up").values()) == [1] * 8
        assert page.value("gpumon_nvml_up") == 1
        for reading in ("temperature_celsius", "utilization_ratio", "energy_joules_total"):
            assert len(page.gpus(f"gpumon_gpu_{reading}")) == 8
        assert all(0 < each <= 1 for each in page.gpus("gpumon_gpu_utilization_ratio").values())
        restarts = {series: n for series, n in page.values.items() if series[0] == "gpumon_sampler_restarts_total"}
        assert not any(restarts.values()), restarts
    assert list(falls(pages)) == []
    # Polls are slow on a busy machine: then this alert is right.
    assert {alert["rule"] for alert in agent.get("/api/v1/alerts")["alerts"]} <= {"GpumonPollSlow"}


def assert_no_spike(pages: list[tuple[float, Metrics]]) -> None:
    """Check that counters of seconds grow no faster than time, and busy time no faster than observed time."""
    for (earlier, before), (later, after) in pairwise(pages):
        for gpu, watched in after.gpus("gpumon_gpu_observed_seconds_total").items():
            gained = watched - before.gpus("gpumon_gpu_observed_seconds_total")[gpu]
            busy = after.gpus("gpumon_gpu_busy_seconds_total")[gpu] - before.gpus("gpumon_gpu_busy_seconds_total")[gpu]
            assert busy <= gained + 1e-6
            assert gained <= later - earlier + 10.0  # a page may be as old as a reading may be


def test_a_suspended_host_with_a_stepped_clock_has_no_fault(agent: AgentProcess, clock: SteppedClock) -> None:
    """After a pause during driver calls and steps of a day nothing is replaced, and the gap is not integrated."""
    eventually(lambda: len(agent.metrics().gpus("gpumon_gpu_busy_seconds_total")) == 8)
    began = agent.metrics().value("gpumon_snapshot_timestamp_seconds") or 0.0
    with Scrapes(agent) as scrapes:
        eventually(lambda: len(scrapes.pages) >= 3)
        with agent.pause():
            threading.Event().wait(PAUSE)  # the pause itself
            clock.step(-DAY)
        eventually(lambda: _is_at(agent, began - DAY))
        await_evaluation(agent)
        clock.step(DAY)
        eventually(lambda: _is_at(agent, began + DAY))
        await_evaluation(agent)

    assert_undisturbed(agent, scrapes)
    assert_no_spike(scrapes.pages)
    first, last = scrapes.pages[0][1], scrapes.pages[-1][1]
    assert len(last.gpus("gpumon_gpu_observed_seconds_total")) == 8
    for gpu, watched in last.gpus("gpumon_gpu_observed_seconds_total").items():
        assert watched - first.gpus("gpumon_gpu_observed_seconds_total")[gpu] < scrapes.age - PAUSE / 2


def _is_at(agent: AgentProcess, wall: float) -> bool:
    return abs((agent.metrics().value("gpumon_snapshot_timestamp_seconds") or 0.0) - wall) < DAY / 2
