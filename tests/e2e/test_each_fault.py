"""Every kind of fault on the running agent while somebody else has the processors: it stays with its GPU, and heals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import Agent, Metrics, all_cores_busy, eventually
from scrapes import Scrapes, falls

WELL = {"0", "4", "6"}
TROUBLES = {
    1: {"lost": True},
    2: {"reset_required": True, "fail": {"nvmlDeviceGet*": "RESET_REQUIRED"}},
    3: {"lookup": "NO_PERMISSION", "fail": {"nvmlDeviceGet*": "NO_PERMISSION"}},
    4: {
        "fail": {"nvmlDeviceGetPerformanceState": 999, "nvmlDeviceGetMemoryInfo*": "NO_PERMISSION"},
        "fail_fields": {"POWER_INSTANT": 999},
        "field_types": {"MEMORY_TEMP": "double"},
        "garbage": {"utilization": 300, "temperature": 65535, "energy": -5},
    },
    5: {"hang": ["nvmlDeviceGetTemperature*"]},
    6: {"delay": {"nvmlDeviceGet*": 0.2}},
    7: {"crash": ["nvmlDeviceGetTemperature*"]},
}
FAULTS = {"1": "lost", "2": "reset_required", "3": "no_permission", "5": "stuck", "7": "unknown"}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    one = Agent(tmp_path)
    one.simulate({"idle": True})
    with all_cores_busy():
        one.start()
        yield one
        one.stop()
    assert "Traceback" not in one.log.read_text(encoding="utf-8")


def faults(page: Metrics) -> dict[str, str]:
    """By GPU, what keeps it from answering."""
    told = (dict(labels) for (name, labels), on in page.values.items() if name == "gpumon_gpu_fault" and on)
    return {one["gpu"]: one["fault"] for one in told}


def test_every_gpu_may_have_another_fault(agent: Agent) -> None:
    """Lost, locked, forbidden, half broken, hung, slow and crashing at once: each is told, the rest is read."""
    before = agent.metrics()
    with Scrapes(agent) as scrapes:
        agent.simulate({"idle": True, "gpus": TROUBLES})
        eventually(lambda: faults(agent.metrics()) == FAULTS)
        page = agent.metrics()
        assert set(page.gpus("gpumon_gpu_temperature_celsius")) == WELL - {"4"}
        assert "crashes in nvmlDeviceGetTemperature" in agent.get("/api/v1/gpus/7")["detail"]
        assert_only_what_is_true(page)
        eventually(lambda: agent.metrics().value("gpumon_collector_denied", collector="memory_used_bytes") == 1)

        agent.simulate({"idle": True})
        eventually(lambda: faults(agent.metrics()) == {})
        eventually(lambda: set(agent.metrics().gpus("gpumon_gpu_temperature_celsius")) == {str(n) for n in range(8)})
        # Without a step: what was nonsense was no new beginning.
        eventually(lambda: agent.metrics().gpus("gpumon_gpu_energy_joules_total").get("4", 0) > energy(before, "4"))

    assert not scrapes.failed
    assert list(falls(page for _, page in scrapes.pages)) == []
    assert all(page.gpus("gpumon_gpu_up")["0"] == 1 for _, page in scrapes.pages)
    assert all("0" in page.gpus("gpumon_gpu_temperature_celsius") for _, page in scrapes.pages)
    assert all(page.value("gpumon_nvml_up") == 1 for _, page in scrapes.pages)
    last = scrapes.pages[-1][1]
    assert energy(last, "4") - energy(before, "4") == pytest.approx(energy(last, "0") - energy(before, "0"), rel=0.2)


def energy(page: Metrics, gpu: str) -> float:
    return page.gpus("gpumon_gpu_energy_joules_total")[gpu]


def assert_only_what_is_true(page: Metrics) -> None:
    """Of GPU 4: what failed, was forbidden or cannot be is absent; everything else is there."""
    shown = {name.removeprefix("gpumon_gpu_") for name, labels in page.values if ("gpu", "4") in labels}
    absent = {
        *("performance_state", "memory_used_bytes", "power_instant_watts"),
        *("utilization_ratio", "temperature_celsius", "energy_joules_total"),
    }
    assert absent & shown == set()
    assert {"power_watts", "memory_utilization_ratio", "clock_hertz", "row_remap_pending"} <= shown
