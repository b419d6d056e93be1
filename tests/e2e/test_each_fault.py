"""Every kind of fault on the running agent while all cores are busy: it affects one GPU only, and ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import AgentProcess, Metrics, all_cores_busy, eventually
from scrapes import Scrapes, falls

HEALTHY = {"0", "4", "6"}
GPU_FAULTS = {
    0: {"mig": ["3g.40gb", "1g.10gb"]},
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


SLOW = {"idle": True, "delay": {"nvmlInit*": 20.0, "nvmlDevice*": 0.03}}


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AgentProcess, Scrapes]]:
    """Yield an agent with a slow driver. It starts while the other tests run; its own test is the last."""
    one = AgentProcess(tmp_path_factory.mktemp("slow"))
    one.simulate(SLOW)
    one.launch()
    eventually(lambda: one.status("/-/healthy") == 200)
    with Scrapes(one) as scrapes:
        yield one, scrapes
    one.stop()


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("slow")]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    one = AgentProcess(tmp_path)
    one.simulate({"idle": True})
    with all_cores_busy():
        one.start()
        yield one
        one.stop()
    assert "Traceback" not in one.log.read_text(encoding="utf-8")


def faults(page: Metrics) -> dict[str, str]:
    """Return the fault of each failed GPU."""
    active = (dict(labels) for (name, labels), on in page.values.items() if name == "gpumon_gpu_fault" and on)
    return {labels["gpu"]: labels["fault"] for labels in active}


def test_every_gpu_may_have_another_fault(agent: AgentProcess) -> None:
    """Each GPU reports its own fault, all other readings continue, and everything recovers."""
    before = agent.metrics()
    with Scrapes(agent) as scrapes:
        agent.simulate({"idle": True, "gpus": GPU_FAULTS})
        eventually(lambda: faults(agent.metrics()) == FAULTS)
        eventually(lambda: instances(agent.metrics()) == {"3g.40gb", "1g.10gb"})
        page = agent.metrics()
        assert set(page.gpus("gpumon_gpu_temperature_celsius")) == HEALTHY - {"4"}
        assert "crashes in nvmlDeviceGetTemperature" in agent.get("/api/v1/gpus/7")["detail"]
        assert_failed_readings_are_absent(page)
        eventually(lambda: agent.metrics().value("gpumon_collector_denied", collector="memory_used_bytes") == 1)

        agent.simulate({"idle": True})
        eventually(lambda: faults(agent.metrics()) == {})
        eventually(lambda: instances(agent.metrics()) == set())
        eventually(lambda: set(agent.metrics().gpus("gpumon_gpu_temperature_celsius")) == {str(n) for n in range(8)})
        # Without a step: an implausible value is no counter reset. Soon after the fault, one of the GPUs is read later.
        eventually(lambda: same_energy(before, agent.metrics(), "0", "4"))

    assert not scrapes.failed
    assert list(falls(page for _, page in scrapes.pages)) == []
    assert all(page.gpus("gpumon_gpu_up")["0"] == 1 for _, page in scrapes.pages)
    assert all("0" in page.gpus("gpumon_gpu_temperature_celsius") for _, page in scrapes.pages)
    assert all(page.value("gpumon_nvml_up") == 1 for _, page in scrapes.pages)


def instances(page: Metrics) -> set[str]:
    """Profiles of the MIG instances of GPU 0."""
    return {dict(labels)["profile"] for name, labels in page.values if name == "gpumon_mig_info"}


def same_energy(before: Metrics, page: Metrics, *gpus: str) -> bool:
    """Whether the two GPUs have used the same energy since a page, but for a fifth."""
    first, second = (energy(page, gpu) - energy(before, gpu) for gpu in gpus)
    return first == pytest.approx(second, rel=0.2)


def energy(page: Metrics, gpu: str) -> float:
    return page.gpus("gpumon_gpu_energy_joules_total").get(gpu, 0)


def assert_failed_readings_are_absent(page: Metrics) -> None:
    """Check that failed, denied and implausible readings of GPU 4 are absent, and the others present."""
    shown = {name.removeprefix("gpumon_gpu_") for name, labels in page.values if ("gpu", "4") in labels}
    absent = {
        *("performance_state", "memory_used_bytes", "power_instant_watts"),
        *("utilization_ratio", "temperature_celsius", "energy_joules_total"),
    }
    assert absent & shown == set()
    assert {"power_watts", "memory_utilization_ratio", "clock_hertz", "row_remap_pending"} <= shown


STORM = {"gpus": {1: {"xids": [{"xid": 13, "rate": 500}]}}}
REFUSED = {"fail": {"nvmlEventSetWait*": "UNKNOWN"}}
POLLS = 8
CALLS_PER_POLL = 250
"""Well above the calls of a poll of eight GPUs, and well below those of a loop without a pause."""


def test_storms_of_events_cause_no_busy_loop(agent: AgentProcess) -> None:
    """Neither 500 Xids a second nor an event set that always fails at once multiplies the driver calls of a poll."""
    agent.simulate({"idle": True, **STORM})
    eventually(lambda: agent.metrics().value("gpumon_gpu_xid_errors_total", gpu="1", xid="13"))
    assert_few_calls(agent)

    agent.simulate({"idle": True, **REFUSED})
    eventually(lambda: "NVML event set failed" in agent.log.read_text(encoding="utf-8"))
    assert_few_calls(agent)
    assert agent.metrics().gpus("gpumon_gpu_up") == {str(n): 1 for n in range(8)}
    assert not any(restarts(agent.metrics()).values())


def assert_few_calls(agent: AgentProcess) -> None:
    """Compare the driver calls with the polls in the same time."""
    polls, calls = fast_polls(agent), driver_calls(agent)
    eventually(lambda: fast_polls(agent) >= polls + POLLS)
    assert driver_calls(agent) - calls < CALLS_PER_POLL * (fast_polls(agent) - polls)


def fast_polls(agent: AgentProcess) -> float:
    return agent.metrics().value("gpumon_polls_total", tier="fast") or 0.0


def driver_calls(agent: AgentProcess) -> float:
    return agent.metrics().value("gpumon_driver_calls_total") or 0.0


def restarts(page: Metrics) -> dict[str, float]:
    """Return the sampler restarts by reason."""
    series = page.values.items()
    return {dict(labels)["reason"]: n for (name, labels), n in series if name == "gpumon_sampler_restarts_total"}


def test_a_driver_that_is_only_slow_is_waited_for(slow: tuple[AgentProcess, Scrapes]) -> None:
    """The agent is ready during an initialisation of 20 s, kills no child, and reads all GPUs with slow calls."""
    agent, scrapes = slow
    page = eventually(lambda: _with_all_gpus(agent.metrics()))
    assert not any(restarts(page).values())
    before = [page for _, page in scrapes.pages]
    assert not any(page.gpus("gpumon_gpu_temperature_celsius") for page in before if page.value("gpumon_nvml_up") == 0)
    assert any(page.value("gpumon_nvml_stuck_seconds") for page in before)

    scraped = len(scrapes.pages)
    eventually(lambda: len(scrapes.pages) >= scraped + 10)
    assert agent.status("/-/ready") == 200
    assert all(_with_all_gpus(page) for _, page in scrapes.pages[scraped:])
    assert not any(restarts(agent.metrics()).values())
    assert not scrapes.failed


def _with_all_gpus(page: Metrics) -> Metrics | None:
    return page if len(page.gpus("gpumon_gpu_temperature_celsius")) == 8 else None
