"""Releases and holds of a running agent: with processes on the GPUs, after kill -9, and without an agent."""

from __future__ import annotations

import http.client
import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from agents import AgentProcess, Metrics, alive, eventually
from typing_extensions import Self
from unkillable import build, held

pytestmark = pytest.mark.slow


SAMPLER = "gpumon.collectors.sampler"
EVERY = {str(gpu) for gpu in range(8)}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    one = AgentProcess(tmp_path)
    one.simulate({"idle": True})
    configure(one)
    yield one
    one.stop()


def configure(agent: AgentProcess, **settings: object) -> None:
    release = {"marker": str(agent.folder / "release"), "max_seconds": 600} | settings
    configuration = {"probe": {"initial_delay_seconds": 3600}, "release": release}
    (agent.folder / "gpumon.yml").write_text(json.dumps(configuration), encoding="ascii")


def start_agent(agent: AgentProcess) -> AgentProcess:
    return agent.start(f"--config.file={agent.folder / 'gpumon.yml'}")


def all_up(agent: AgentProcess) -> bool:
    up = agent.metrics().gpus("gpumon_gpu_up")
    return set(up) == EVERY and set(up.values()) == {1}


class Watch:
    """Scrapes until stopped, and records each fault on any page."""

    def __init__(self, agent: AgentProcess) -> None:
        self._agent = agent
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._scrape)
        self.wrong: list[str] = []
        self.pages = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _scrape(self) -> None:
        while not self._stop.wait(0.1):
            try:
                self._judge(self._agent.metrics())
            except (OSError, http.client.HTTPException):  # killed and not restarted yet
                continue

    def _judge(self, page: Metrics) -> None:
        self.pages += 1
        if page.value("gpumon_nvml_up") == 0:
            self.wrong.append("nvml_up")
        for (name, labels), value in page.values.items():
            down = name == "gpumon_gpu_up" and value == 0
            if down or (value and name in {"gpumon_gpu_fault", "gpumon_alerts"}):
                self.wrong.append(f"{name} {dict(labels)}")


def test_a_released_node_is_reopened_when_the_release_ends(agent: AgentProcess) -> None:
    """No process holds a GPU during the release, over a reload and a kill -9, and a new sampler reads all after it."""
    start_agent(agent)
    eventually(lambda: all_up(agent))
    with Watch(agent) as watch:
        asked = agent.command("release", "--for", "5m")
        assert (asked.returncode, asked.stderr) == (0, "")
        assert asked.stdout.startswith("Every GPU is released until ")
        assert asked.stdout.endswith("No process of gpumon has a released GPU open.\n")
        assert agent.children(SAMPLER) == set()
        page = agent.metrics()
        assert page.value("gpumon_nvml_up") is None
        assert page.gpus("gpumon_gpu_released") == dict.fromkeys(EVERY, 1)
        assert not page.gpus("gpumon_gpu_temperature_celsius")
        assert set(page.gpus("gpumon_gpu_info")) == EVERY
        end = page.value("gpumon_release_end_timestamp_seconds")
        assert end is not None
        assert agent.get("/api/v1/node")["releases"][0]["by"] == "command"
        assert "Every GPU is released until" in agent.command("status").stdout
        assert "Every GPU is released until" in agent.ask("/")[1].decode()
        assert agent.post("/probe/allreduce")[1]["reason"] == "released"

        configure(agent, max_seconds=60)
        agent.process.send_signal(signal.SIGHUP)
        eventually(lambda: "key=release.max_seconds" in agent.log.read_text())
        assert agent.post("/api/v1/windows?kind=release&for_seconds=61")[0] == 400
        assert agent.children(SAMPLER) == set()
        agent.kill()
        configure(agent)
        start_agent(agent)
        assert agent.children(SAMPLER) == set()
        assert agent.metrics().value("gpumon_release_end_timestamp_seconds") == end
        assert agent.status("/-/ready") == 200

        assert agent.command("release", "--end").stdout == "No GPU is released.\n"
        eventually(lambda: all_up(agent))
        assert agent.metrics().value("gpumon_release_end_timestamp_seconds") is None
    assert watch.pages
    assert watch.wrong == []
    logged = [line for line in agent.log.read_text().splitlines() if 'msg="release ' in line]
    expected = ("release started: the agent closes", "release continues: the agent closes", "release ended")
    assert [message in line for message, line in zip(expected, logged, strict=True)] == [True, True, True]
    assert "ended_by=command" in logged[2]


def test_a_process_that_cannot_be_killed_fails_the_command(agent: AgentProcess) -> None:
    """The command names the process and exits with 1, and the marker's `.done` file waits for its end."""
    start_agent(agent)
    eventually(lambda: all_up(agent))
    (sampler,) = agent.children(SAMPLER)
    marker, done = agent.folder / "release", agent.folder / "release.done"
    with held(build(agent.folder), sampler):
        agent.simulate({"idle": True, "gpus": {5: {"hang": ["nvmlDeviceGetUtilizationRates"]}}})
        eventually(lambda: agent.metrics().value("gpumon_nvml_stuck_seconds"))
        asked = agent.command("release", "--for", "5m")
        assert asked.returncode == 1
        assert f"Still held by sampler {sampler} in nvmlDeviceGetUtilizationRates on" in asked.stderr
        assert "reboot it" in asked.stderr
        marker.touch()
        eventually(lambda: any(each["subject"] == "release" for each in agent.get("/api/v1/node")["notices"]))
        assert not done.exists()
        agent.simulate({"idle": True})
    eventually(done.exists)
    assert agent.command("release", "--for", "5m").returncode == 0
    assert alive(agent.children(SAMPLER)) == set()

    assert agent.command("release", "--end").returncode == 1  # the marker is still there
    assert agent.children(SAMPLER) == set()
    marker.unlink()
    eventually(lambda: all_up(agent))
    assert not done.exists()


RANKS = "gpumon/probe/worker"
WINDOW = ("--for", "2h", "--reason", "new fans")


def test_a_hold_outlives_its_agent(tmp_path: Path) -> None:
    """No rank is left when the command returns, and no probe runs until the hold ends, over kills and restarts."""
    agent = AgentProcess(tmp_path, environment={"GPUMON_PROBE__INITIAL_DELAY_SECONDS": "3600"})
    agent.simulate({"idle": True})
    try:
        agent.start()
        assert agent.post("/probe/allreduce")[0] == 202
        ranks = eventually(lambda: agent.children(RANKS))
        began = agent.command("probe", "hold", "--for", "2h", "--owner", "4711", "--reason", "prolog")
        assert not alive(ranks)
        assert (began.returncode, "No process of a probe is on a GPU." in began.stdout) == (0, True), began
        assert eventually(lambda: agent.get("/probe/allreduce")["last"])["reason"] == "held"
        assert agent.post("/probe/allreduce")[1]["reason"] == "held"
        assert "held by command for 4711 (prolog)" in agent.command("status").stdout

        agent.kill()
        agent.start()
        assert agent.post("/probe/allreduce")[1]["reason"] == "held"

        agent.stop()
        alone = agent.command("probe", "unhold", "--owner", "4711")
        assert (alone.returncode, "Nothing was changed" in alone.stderr) == (1, True), alone
        agent.start()
        assert agent.post("/probe/allreduce")[1]["reason"] == "held"
        assert agent.command("probe", "unhold", "--owner", "4711").returncode == 0
        assert agent.get("/api/v1/probes/hold")["windows"] == []
        assert agent.post("/probe/allreduce")[0] == 202
        log = agent.log.read_text(encoding="utf-8")
        assert log.count("hold started: no probe runs") == 1
        assert log.count("hold continues: no probe runs") == 2
    finally:
        agent.stop()


def test_a_job_that_begins_while_the_agent_starts_is_held(tmp_path: Path) -> None:
    """The command waits for an agent that restarts, because it must learn of the job."""
    agent = AgentProcess(tmp_path)
    with ThreadPoolExecutor() as pool:
        began = pool.submit(agent.command, "probe", "hold", "--owner", "4711")
        try:
            agent.start()
            assert began.result().returncode == 0, began.result()
            assert agent.get("/api/v1/probes/hold")["windows"][0]["owner"] == "4711"
        finally:
            agent.stop()


@pytest.mark.parametrize("command", [["probe", "hold"], ["probe", "unhold"], ["maintenance", "start", *WINDOW]])
def test_a_command_without_an_agent_changes_nothing(tmp_path: Path, command: list[str]) -> None:
    """A command of root writes no file in the folder of the agent, which could be a link to any file."""
    agent = AgentProcess(tmp_path)
    before = sorted(tmp_path.iterdir())
    ran = agent.command(*command)
    assert ran.returncode != 0
    assert "no agent answers" in ran.stderr
    assert sorted(tmp_path.iterdir()) == before
