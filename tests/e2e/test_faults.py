"""A real agent, scraped by a real Prometheus that alerts through a real Alertmanager, while GPUs fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import AgentProcess, alive, descendants, eventually
from alert_stack import AlertStack
from scrapes import Scrapes, not_growing

pytestmark = pytest.mark.slow

LOST, HUNG = "3", "5"
STALE = 10
"""Seconds after which the agent drops a reading: a reading on every page is a reading that was repeated."""
OTHERS = {str(gpu) for gpu in range(8)}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    one = AgentProcess(tmp_path)
    one.simulate({"idle": True})
    one.start()
    yield one
    one.stop()


def test_a_lost_gpu_fires_through_alertmanager_while_seven_report(agent: AgentProcess, tmp_path: Path) -> None:
    """GpuLost reaches Alertmanager and stays after the GPU is back, and every scrape shows the other seven GPUs."""
    with AlertStack(tmp_path, agent.port).up() as stack, Scrapes(agent) as scrapes:
        agent.simulate({"idle": True, "gpus": {int(LOST): {"lost": True}}})
        eventually(lambda: agent.metrics().gpus("gpumon_gpu_up")[LOST] == 0)
        eventually(lambda: ("GpuLost", LOST) in stack.firing())
        eventually(lambda: _firing_here(agent, "GpuLost"))

        agent.simulate({"idle": True})
        eventually(lambda: agent.metrics().gpus("gpumon_gpu_up")[LOST] == 1)
        polls = agent.metrics().value("gpumon_polls_total", tier="slow") or 0
        eventually(lambda: (agent.metrics().value("gpumon_polls_total", tier="slow") or 0) > polls)
        assert _firing_here(agent, "GpuLost")  # it was neither reset nor cleared, so it may fall off again
        assert ("GpuLost", LOST) in stack.firing()

    assert not scrapes.failed
    for _, page in scrapes.pages:
        up = page.gpus("gpumon_gpu_up")
        assert set(up) == OTHERS
        assert {gpu for gpu, one in up.items() if one} >= OTHERS - {LOST}
        assert set(page.gpus("gpumon_gpu_temperature_celsius")) >= OTHERS - {LOST}
    assert not_growing(scrapes.pages, OTHERS - {LOST}) == set()
    stamps = [page.value("gpumon_snapshot_timestamp_seconds") or 0 for _, page in scrapes.pages]
    assert stamps == sorted(stamps)
    assert len(set(stamps)) > 1


def _firing_here(agent: AgentProcess, rule: str) -> bool:
    alerts = agent.get("/api/v1/alerts?state=firing")["alerts"]
    return any(each["rule"] == rule for each in alerts)


def test_a_hung_call_affects_one_gpu_and_resolves_no_alert(agent: AgentProcess, tmp_path: Path) -> None:
    """The readings of GPU 5 vanish, the sampler is replaced, and every scrape shows the other GPUs."""
    lost = {int(LOST): {"lost": True}}
    agent.simulate({"idle": True, "gpus": lost})
    with AlertStack(tmp_path, agent.port).up() as stack:
        eventually(lambda: ("GpuLost", LOST) in stack.firing())
        with Scrapes(agent) as scrapes:
            agent.simulate({"idle": True, "gpus": {**lost, int(HUNG): {"hang": ["nvmlDeviceGetTemperature*"]}}})
            eventually(lambda: agent.metrics().gpus("gpumon_gpu_up")[HUNG] == 0)
            assert HUNG not in agent.metrics().gpus("gpumon_gpu_temperature_celsius")
            eventually(lambda: agent.metrics().value("gpumon_gpu_fault", gpu=HUNG, fault="stuck") == 1)
            eventually(lambda: (agent.metrics().value("gpumon_sampler_restarts_total", reason="deadline") or 0) >= 1)
            eventually(lambda: ("GpuStuck", HUNG) in stack.firing())
            # Wait for a trial, which hangs as well and is killed.
            eventually(lambda: "trial" in agent.log.read_text(encoding="utf-8") or scrapes.age > 12)
            held = stack.firing()
            agent.simulate({"idle": True, "gpus": lost})
            eventually(lambda: agent.metrics().gpus("gpumon_gpu_up")[HUNG] == 1)
        assert ("GpuLost", LOST) in held
        assert ("GpuLost", LOST) in stack.firing()

    assert not scrapes.failed
    seven = OTHERS - {HUNG, LOST}
    assert all(set(page.gpus("gpumon_gpu_temperature_celsius")) >= seven for _, page in scrapes.pages)
    assert not_growing(scrapes.pages, seven) == set()


@pytest.mark.parametrize("state", ["healthy", "hung", "probing"])
def test_kill_9_leaves_no_process_and_a_restart_loses_no_xid(tmp_path: Path, state: str) -> None:
    """SIGKILL of the daemon ends every child, and no Xid counter is lower after a restart."""
    agent = AgentProcess(tmp_path)
    try:
        _kill_and_restart(agent, state)
    finally:
        agent.stop()
    assert not descendants(agent.process.pid)


def _kill_and_restart(agent: AgentProcess, state: str) -> None:
    agent.simulate({"idle": True})
    agent.start(*(["--config.file", str(_probing_now(agent.folder))] if state == "probing" else []))
    agent.simulate({"idle": True, "gpus": {1: {"xids": [79]}}})
    eventually(lambda: _xid_79(agent) == 1)
    if state == "hung":
        agent.simulate({"idle": True, "hang": ["nvmlDeviceGetCount*"]})
        eventually(lambda: (agent.metrics().value("gpumon_nvml_stuck_seconds") or 0) > 0)
    if state == "probing":
        assert agent.post("/probe/allreduce")[0] == 202
        eventually(lambda: len(agent.children("probe/worker")) == 2)
    children = agent.children()
    assert children

    agent.kill()
    eventually(lambda: not alive(children))

    agent.simulate({"idle": True})
    agent.start()
    eventually(lambda: _xid_79(agent) == 1)
    assert agent.metrics().gpus("gpumon_gpu_up") == dict.fromkeys(OTHERS, 1)
    eventually(lambda: _firing_here(agent, "GpuXidCritical"))
    assert agent.stop() == 0


def _xid_79(agent: AgentProcess) -> float | None:
    return agent.metrics().value("gpumon_gpu_xid_errors_total", gpu="1", xid="79")


def _probing_now(folder: Path) -> Path:
    path = folder / "gpumon.yml"
    path.write_text("probe: {initial_delay_seconds: 3600}\n", encoding="utf-8")
    return path


def test_sigterm_ends_every_process_while_a_call_hangs(agent: AgentProcess) -> None:
    """SIGTERM, as systemd sends it, ends the agent with exit code 0 and all its children."""
    agent.simulate({"idle": True, "hang": ["nvmlDeviceGetCount*"]})
    eventually(lambda: (agent.metrics().value("gpumon_nvml_stuck_seconds") or 0) > 0)
    children = agent.children()
    assert children

    assert agent.stop() == 0

    assert not alive(children)


@pytest.mark.parametrize(
    "trouble",
    [
        {"delay": {"nvmlDeviceGet*": 0.7}},
        {"lost": True, "hang": ["nvmlDeviceGetHandleByPciBusId*"]},
        {"lookup": 9, "fail": {"nvmlDeviceGet*": 9}},
    ],
    ids=["slow", "lost and hanging", "driver not loaded"],
)
def test_no_fault_of_one_gpu_stops_the_readings_of_the_others(agent: AgentProcess, trouble: dict[str, object]) -> None:
    """Every scrape shows seven GPUs up with readings, for longer than the agent keeps old readings."""
    agent.simulate({"idle": True, "gpus": {int(HUNG): {"lost": True} if "lost" in trouble else {}}})
    if "lost" in trouble:
        eventually(lambda: agent.metrics().gpus("gpumon_gpu_up")[HUNG] == 0)
    with Scrapes(agent) as scrapes:
        agent.simulate({"idle": True, "gpus": {int(HUNG): trouble}})
        eventually(lambda: scrapes.age > STALE + 2)

    seven = OTHERS - {HUNG}
    for _, page in scrapes.pages:
        assert {gpu for gpu, up in page.gpus("gpumon_gpu_up").items() if up} >= seven
        assert set(page.gpus("gpumon_gpu_temperature_celsius")) >= seven
        assert page.value("gpumon_nvml_up") == 1
    assert not_growing(scrapes.pages, seven) == set()
