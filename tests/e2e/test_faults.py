"""A real agent, scraped by a real Prometheus that alerts through a real Alertmanager, while GPUs fail."""

from __future__ import annotations

import contextlib
import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from agents import Agent, alive, descendants, eventually, free_port, running
from scrapes import Scrapes, not_growing

pytestmark = pytest.mark.slow

LOST, HUNG = "3", "5"
STALE = 10
"""Seconds after which the agent drops a reading: a reading on every page is a reading that was repeated."""
OTHERS = {str(gpu) for gpu in range(8)}
RULES = Path(__file__).parents[2] / "alert_rules" / "gpumon.yml"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    one = Agent(tmp_path)
    one.simulate({"idle": True})
    one.start()
    yield one
    one.stop()


class Stack:
    """Prometheus with gpumon's rules and a scrape every second, and Alertmanager."""

    def __init__(self, folder: Path, target: int) -> None:
        self.prometheus, self.alertmanager = free_port(), free_port()
        self.folder = folder
        scrape = {"job_name": "gpumon", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [scrape],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{self.alertmanager}"]}]}]},
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
        (folder / "alertmanager.yml").write_text(
            "route: {receiver: none, group_wait: 1s, group_interval: 1s}\nreceivers: [{name: none}]\n", encoding="utf-8"
        )

    @contextlib.contextmanager
    def up(self) -> Iterator[Stack]:
        alertmanager = [
            "prometheus-alertmanager",
            f"--config.file={self.folder / 'alertmanager.yml'}",
            f"--storage.path={self.folder / 'alertmanager'}",
            f"--web.listen-address=127.0.0.1:{self.alertmanager}",
            "--cluster.listen-address=",
        ]
        prometheus = [
            "prometheus",
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self.prometheus}",
        ]
        with (
            running(alertmanager, self.folder / "alertmanager.log"),
            running(prometheus, self.folder / "prometheus.log"),
        ):
            eventually(lambda: self.query("up == 1"))
            yield self

    def query(self, promql: str) -> list[Any]:
        asked = urllib.parse.urlencode({"query": promql})
        return list(_json(f"http://127.0.0.1:{self.prometheus}/api/v1/query?{asked}")["data"]["result"])

    def firing(self) -> set[tuple[str, str]]:
        """Return rule and GPU of the active alerts in Alertmanager."""
        alerts = _json(f"http://127.0.0.1:{self.alertmanager}/api/v2/alerts?active=true")
        return {(one["labels"]["alertname"], one["labels"].get("gpu", "")) for one in alerts}


def _json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)


def test_a_lost_gpu_fires_through_alertmanager_while_seven_report(agent: Agent, tmp_path: Path) -> None:
    """GpuLost reaches Alertmanager and stays after the GPU is back, and every scrape shows the other seven GPUs."""
    with Stack(tmp_path, agent.port).up() as stack, Scrapes(agent) as scrapes:
        agent.simulate({"idle": True, "gpus": {int(LOST): {"lost": True}}})
        eventually(lambda: agent.metrics().gpus("gpumon_gpu_up")[LOST] == 0)
        eventually(lambda: ("GpuLost", LOST) in stack.firing())
        eventually(lambda: _firing_here(agent, "GpuLost"))

        agent.simulate({"idle": True})
        eventually(lambda: agent.metrics().gpus("gpumon_gpu_up")[LOST] == 1)
        polls = agent.metrics().value("gpumon_polls_total", tier="slow") or 0
        eventually(lambda: (agent.metrics().value("gpumon_polls_total", tier="slow") or 0) > polls)
        assert _firing_here(agent, "GpuLost")  # it was neither reset nor acknowledged, so it may fall off again
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


def _firing_here(agent: Agent, rule: str) -> bool:
    alerts = agent.get("/api/v1/alerts?state=firing")["alerts"]
    return any(one["rule"] == rule for one in alerts)


def test_a_hung_call_affects_one_gpu_and_resolves_no_alert(agent: Agent, tmp_path: Path) -> None:
    """The readings of GPU 5 vanish, the sampler is replaced, and every scrape shows the other GPUs."""
    lost = {int(LOST): {"lost": True}}
    agent.simulate({"idle": True, "gpus": lost})
    with Stack(tmp_path, agent.port).up() as stack:
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
    agent = Agent(tmp_path)
    try:
        _kill_and_restart(agent, state)
    finally:
        agent.stop()
    assert not descendants(agent.process.pid)


def _kill_and_restart(agent: Agent, state: str) -> None:
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


def _xid_79(agent: Agent) -> float | None:
    return agent.metrics().value("gpumon_gpu_xid_errors_total", gpu="1", xid="79")


def _probing_now(folder: Path) -> Path:
    path = folder / "gpumon.yml"
    path.write_text("probe: {initial_delay_seconds: 3600}\n", encoding="utf-8")
    return path


def test_sigterm_ends_every_process_while_a_call_hangs(agent: Agent) -> None:
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
def test_no_fault_of_one_gpu_stops_the_readings_of_the_others(agent: Agent, trouble: dict[str, object]) -> None:
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
