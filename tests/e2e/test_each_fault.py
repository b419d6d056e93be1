"""Every kind of fault on the running agent, while others have the processors: it stays where it is, and heals."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import Agent, Metrics, all_cores_busy, cpu_seconds, eventually
from scrapes import Scrapes, falls

from gpumon.clock import boot_clock

WELL = {"0", "4", "6"}
NIC_ERRORS = {
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
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Agent, Scrapes]]:
    """An agent whose driver takes its time; nobody waits for it but its own test, which comes last."""
    one = Agent(tmp_path_factory.mktemp("slow"))
    one.simulate(SLOW)
    one.launch()
    eventually(lambda: one.status("/-/healthy") == 200)
    with Scrapes(one) as scrapes:
        yield one, scrapes
    one.stop()


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("slow")]


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
    """Cut up, lost, locked, forbidden, half broken, hung, slow and crashing: each is told, and the rest is read."""
    before = agent.metrics()
    with Scrapes(agent) as scrapes:
        agent.simulate({"idle": True, "gpus": NIC_ERRORS})
        eventually(lambda: faults(agent.metrics()) == FAULTS)
        eventually(lambda: instances(agent.metrics()) == {"3g.40gb", "1g.10gb"})
        page = agent.metrics()
        assert set(page.gpus("gpumon_gpu_temperature_celsius")) == WELL - {"4"}
        assert "crashes in nvmlDeviceGetTemperature" in agent.get("/api/v1/gpus/7")["detail"]
        assert_only_what_is_true(page)
        eventually(lambda: agent.metrics().value("gpumon_collector_denied", collector="memory_used_bytes") == 1)

        agent.simulate({"idle": True})
        eventually(lambda: faults(agent.metrics()) == {})
        eventually(lambda: instances(agent.metrics()) == set())
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


def instances(page: Metrics) -> set[str]:
    """Profiles of the MIG instances of GPU 0."""
    return {dict(labels)["profile"] for name, labels in page.values if name == "gpumon_mig_info"}


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


STORM = {"gpus": {1: {"xids": [{"xid": 13, "rate": 500}]}}}
REFUSED = {"fail": {"nvmlEventSetWait*": "UNKNOWN"}}
WATCHED = 4.0


def test_storms_of_events_spin_nothing(agent: Agent) -> None:
    """Five hundred Xids a second, then a set that fails at once and always: calls and processor time stay few."""
    agent.simulate({"idle": True, **STORM})
    eventually(lambda: agent.metrics().value("gpumon_gpu_xid_errors_total", gpu="1", xid="13"))
    assert_cheap(agent)

    agent.simulate({"idle": True, **REFUSED})
    eventually(lambda: "the event set failed" in agent.log.read_text(encoding="utf-8"))
    assert_cheap(agent)
    assert agent.metrics().gpus("gpumon_gpu_up") == {str(n): 1 for n in range(8)}
    assert not any(restarts(agent.metrics()).values())


def assert_cheap(agent: Agent) -> None:
    """Over a few seconds: driver calls a second, and processor time of daemon and sampler."""
    pids = {agent.process.pid, *agent.children("gpumon.collectors.sampler")}
    began, calls, cpu = boot_clock(), driver_calls(agent), sum(cpu_seconds(pid) for pid in pids)
    threading.Event().wait(WATCHED)
    seconds = boot_clock() - began
    assert driver_calls(agent) - calls < 250 * seconds
    assert sum(cpu_seconds(pid) for pid in pids) - cpu < 0.3 * seconds


def driver_calls(agent: Agent) -> float:
    return agent.metrics().value("gpumon_driver_calls_total") or 0.0


def restarts(page: Metrics) -> dict[str, float]:
    """Of the sampler, by reason."""
    series = page.values.items()
    return {dict(labels)["reason"]: n for (name, labels), n in series if name == "gpumon_sampler_restarts_total"}


def test_a_driver_that_is_only_slow_is_waited_for(slow: tuple[Agent, Scrapes]) -> None:
    """An initialisation of twenty seconds: ready all the same, and no child is killed. Then slow calls: all is read."""
    agent, scrapes = slow
    page = eventually(lambda: _with_all_gpus(agent.metrics()))
    assert not any(restarts(page).values())
    before = [page for _, page in scrapes.pages]
    assert not any(page.gpus("gpumon_gpu_temperature_celsius") for page in before if page.value("gpumon_nvml_up") == 0)
    assert max(page.value("gpumon_nvml_stuck_seconds") or 0.0 for page in before) > 15.0

    seen = len(scrapes.pages)
    threading.Event().wait(WATCHED)
    assert agent.status("/-/ready") == 200
    assert all(_with_all_gpus(page) for _, page in scrapes.pages[seen:])
    assert not any(restarts(agent.metrics()).values())
    assert not scrapes.failed


def _with_all_gpus(page: Metrics) -> Metrics | None:
    return page if len(page.gpus("gpumon_gpu_temperature_celsius")) == 8 else None
