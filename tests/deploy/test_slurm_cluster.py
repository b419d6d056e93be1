"""The health check, run by a real slurmd, and the gate for Slurm ask a real slurmctld, with real agents."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import AgentProcess, eventually
from slurm_cluster import SlurmCluster

from gpumon.fleet.fleet import slurm_drains

pytestmark = pytest.mark.slow

SLURM = Path(__file__).parents[2] / "deploy" / "slurm"
HEALTHCHECK, GATE = SLURM / "gpumon-healthcheck.sh", SLURM / "gpumon-gate.sh"
HOOKS = {name: SLURM / f"gpumon-{name}.sh" for name in ("prolog", "epilog")}
NODE, OTHER, REASON = "n01", "n02", "gpumon: GPU FAIL: GPU 3: It fell off the bus"


class SlurmNode:
    """Node n01 of a Slurm with 10 nodes, and agents that find its GPUs healthy or failed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._program, self._log = folder, folder / "program", folder / "messages"
        self._agents = {name: AgentProcess(folder / name) for name in self._folders("healthy", "failed")}
        self._agents["failed"].simulate({"gpus": {3: {"lost": True}}})
        self._command("logger", f'#!/bin/sh\nshift 3\necho "$*" >> {self._log}\n')
        self._command("gpumon", f'#!/bin/sh\nexec {sys.executable} -m gpumon "$@"\n')
        self._command("program", "#!/bin/sh\nexit 0\n")
        self.slurm = SlurmCluster(self._program, nodes=10, hooks=folder)
        self.mapping = folder / "mapping"
        gpus = f"export SLURM_JOB_GPUS=$(cat {folder}/prolog.gpus)"  # this node of Slurm has no GPUs of its own
        for name, script in HOOKS.items():
            self._command(name, f"#!/bin/sh\n{self._exports('healthy')}{gpus}\nexec {script}\n")

    def _folders(self, *names: str) -> tuple[str, ...]:
        for name in names:
            (self._folder / name).mkdir()
        return names

    def _command(self, name: str, text: str) -> None:
        """Write a command, atomically because slurmd may run it now."""
        path = self._folder / f"{name}.new"
        path.write_text(text)
        path.chmod(0o755)
        path.rename(self._folder / name)

    def start(self) -> None:
        for agent in self._agents.values():
            agent.launch()
        eventually(lambda: self._level("healthy") == "ok")
        eventually(lambda: self._level("failed") == "fail")
        self.slurm.start()

    def _level(self, health: str) -> str:
        file = self._agents[health].folder / "gpumon.db.health.json"
        return str(json.loads(file.read_text())["level"])

    def stop(self) -> None:
        self.slurm.stop()
        for agent in self._agents.values():
            agent.stop()

    def become(self, health: str) -> None:
        """Let the program of slurmd find the GPUs healthy or failed."""
        exports = self._exports(health)
        self._command("program", f"#!/bin/sh\n{exports}{HEALTHCHECK}\necho $? >> {self._folder}/exits.{health}\n")

    def _exports(self, health: str) -> str:
        environment = {
            **self.slurm.environment,
            "PATH": f"{self._folder}:{self.slurm.environment['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "GPUMON": str(self._folder / "gpumon"),
            "GPUMON_STORE__PATH": str(self._agents[health].folder / "gpumon.db"),
            "GPUMON_SLURM_SETTINGS": str(self._folder / "settings"),
            "GPUMON_SLURM_MARK": str(self._folder / "mark"),
            "GPUMON_SLURM_DELAY": "1",
            "GPUMON_SLURM_DRAIN": "fail",
            "GPUMON_SLURM_RESUME": "yes",
            "GPUMON_SLURM_MAPPING": str(self.mapping),
        }
        return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())

    def await_state(self, state: str) -> None:
        eventually(lambda: self.slurm.state(NODE) == state)

    def await_message(self, text: str) -> None:
        """Wait until the next message in the system log that contains the text."""
        self._log.unlink(missing_ok=True)
        eventually(lambda: text in self._log.read_text())

    def await_runs(self, health: str) -> None:
        """Wait until the program has begun and ended in this state of health."""
        exits = self._folder / f"exits.{health}"
        exits.unlink(missing_ok=True)
        eventually(lambda: len(exits.read_text().split()) >= 2)
        assert set(exits.read_text().split()) == {"0"}

    def submit(self, gpus: str) -> str:
        """Submit a job that runs on these GPUs until it is cancelled, and return its id."""
        (self._folder / "prolog.gpus").write_text(gpus)
        batch = ("sbatch", "--parsable", f"--nodelist={NODE}", "--output=/dev/null", "--wrap=sleep 600")
        job = self.slurm.run(*batch).strip()
        eventually(lambda: job in self.mapped()[1])
        return job

    def mapped(self) -> tuple[dict[str, list[str]], list[str]]:
        """Return the jobs of each GPU by its mapping file, and the jobs with a side file."""
        files = {each.name: each.read_text().split() for each in self.mapping.glob("[0-9]*")}
        return files, sorted((each.stem for each in self.mapping.glob("jobs/*.json")), key=int)

    def update(self, node: str, *values: str) -> None:
        self.slurm.scontrol("update", f"nodename={node}", *values)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmNode]:
    node = SlurmNode(tmp_path_factory.mktemp("node"))
    try:
        node.start()
        yield node
    finally:
        node.stop()


@pytest.fixture(autouse=True)
def _healthy(node: SlurmNode) -> None:
    """Begin each test with a healthy node in service."""
    node.become("healthy")
    node.await_runs("healthy")
    if "DRAIN" in node.slurm.state(NODE):
        node.update(NODE, "state=resume")
    node.await_state("IDLE")


def test_a_failed_node_is_drained_and_resumed(node: SlurmNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm and `gpumon fleet` show the line as the reason, and the node is idle again when its GPUs are healthy."""
    node.become("failed")
    node.await_state("IDLE+DRAIN")
    assert node.slurm.reason(NODE).startswith(REASON)
    for name, value in node.slurm.environment.items():
        monkeypatch.setenv(name, value)
    [(name, reason)] = (slurm_drains() or {}).items()
    assert (name, reason.startswith(REASON)) == (NODE, True)
    node.become("healthy")
    node.await_state("IDLE")
    assert node.slurm.reason(NODE) == ""


def test_a_reason_of_an_operator_is_kept(node: SlurmNode) -> None:
    """Neither a failure nor its end changes a node that an operator drained, or whose reason an operator edited."""
    node.update(NODE, "state=drain", "reason=new DIMMs")
    node.become("failed")
    node.await_runs("failed")
    assert node.slurm.reason(NODE) == "new DIMMs"
    node.update(NODE, "state=resume")
    eventually(lambda: node.slurm.reason(NODE).startswith(REASON))
    reason = f"{node.slurm.reason(NODE)}; kim: RMA 4711"
    node.update(NODE, f"reason={reason}")
    node.become("healthy")
    node.await_runs("healthy")
    assert (node.slurm.state(NODE), node.slurm.reason(NODE)) == ("IDLE+DRAIN", reason)


def test_a_resumed_node_is_not_drained_again(node: SlurmNode) -> None:
    node.become("failed")
    node.await_state("IDLE+DRAIN")
    node.await_runs("failed")  # a run that found the node healthy, and that has not ended, would delete the mark
    node.update(NODE, "state=resume")
    node.await_message(f"node {NODE} was resumed while it fails, and is not drained again")
    node.await_runs("failed")
    assert "DRAIN" not in node.slurm.state(NODE)


def test_a_reboot_that_an_administrator_requested_is_kept(node: SlurmNode) -> None:
    """A node that waits for the end of its job, to reboot, stays drained when its GPUs are healthy again."""
    job = node.slurm.run("sbatch", "--parsable", f"--nodelist={NODE}", "--output=/dev/null", "--wrap=sleep 600").strip()
    try:
        eventually(lambda: node.slurm.run("squeue", "--noheader", "--format=%T").strip() == "RUNNING")
        node.become("failed")
        eventually(lambda: node.slurm.reason(NODE).startswith(REASON))
        node.slurm.scontrol("reboot", NODE)
        node.become("healthy")
        node.await_runs("healthy")
        assert "DRAIN+REBOOT_REQUESTED" in node.slurm.state(NODE)
        node.slurm.scontrol("cancel_reboot", NODE)
        eventually(lambda: "DRAIN" not in node.slurm.state(NODE))
    finally:
        node.slurm.run("scancel", job)


def test_a_full_partition_is_not_drained(node: SlurmNode) -> None:
    """The node stays in service while gpumon has drained a tenth of the partition."""
    node.update(OTHER, "state=drain", f"reason={REASON}")
    node.become("failed")
    node.await_message("is not drained: gpumon has drained 1 of 10 nodes of partition gpu, of max 1")
    assert "DRAIN" not in node.slurm.state(NODE)
    node.update(OTHER, "reason=new DIMMs")
    node.await_state("IDLE+DRAIN")


def test_jobs_are_mapped_while_they_run(node: SlurmNode) -> None:
    """A job has its files from prolog to epilog, beside those of a job that shares a GPU, and again after a requeue."""
    first, second = node.submit("0,1"), node.submit("1,2")
    try:
        eventually(lambda: node.mapped() == ({"0": [first], "1": [first, second], "2": [second]}, [first, second]))
        node.slurm.scontrol("requeue", first)
        eventually(lambda: node.mapped() == ({"0": [], "1": [second], "2": [second]}, [second]))
        again = {"0": [], "1": [second, first], "2": [second, first]}, [first, second]
        eventually(lambda: node.mapped() == again)
    finally:
        node.slurm.run("scancel", first, second)
    eventually(lambda: node.mapped() == ({"0": [], "1": [], "2": []}, []))


@pytest.mark.parametrize(("name", "code", "words"), [(NODE, 0, "is IDLE, and without a job"), ("n99", 2, "not found")])
def test_an_idle_node_is_free_for_the_probe(node: SlurmNode, name: str, code: int, words: str) -> None:
    """The gate reads the state and the jobs of the node; a name that Slurm lacks is not free."""
    environment = {**node.slurm.environment, "SLURMD_NODENAME": name}
    ran = subprocess.run([GATE], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, words in ran.stdout) == (code, True), ran.stdout
