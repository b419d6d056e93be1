"""What children inherit: no module of the working directory, and no capability that they do not need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from agents import AgentProcess, eventually

CAP_SYSLOG = 1 << 34
GPUMON = str(Path(sys.executable).with_name("gpumon"))
MODULES = ("gpumon/__init__.py", "importlib/__init__.py", "json.py", "bisect.py", "gzip.py", "torch.py")
"""Modules that an attacker leaves in a folder in which root may start a command."""


@pytest.fixture
def hostile_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to a folder whose modules leave a file behind if they are imported."""
    folder = tmp_path / "hostile"
    for module in MODULES:
        (folder / module).parent.mkdir(parents=True, exist_ok=True)
        (folder / module).write_text(f"open({str(folder / 'imported')!r}, 'a').write({module!r})")
    monkeypatch.chdir(folder)
    yield folder
    assert not (folder / "imported").exists(), (folder / "imported").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("hostile_folder")
def test_commands_import_nothing_from_the_working_directory(tmp_path: Path) -> None:
    """`gpumon once`, and `gpumon-sim` with a program or a recording, run as root in any folder."""
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable} -I\nprint('ran')\n", encoding="utf-8")
    program.chmod(0o755)
    for command in (
        [f"{GPUMON}-sim", "t4x1", "--", str(program)],
        [GPUMON, "once", "--simulate=t4x1"],
        [f"{GPUMON}-sim", "record", "--simulate=t4x1", "--for=1s", str(tmp_path / "x.capture")],
    ):
        subprocess.run(command, check=True, capture_output=True, timeout=60)


@pytest.mark.slow
@pytest.mark.usefixtures("hostile_folder")
def test_the_agent_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    """Sampler, host child, scheduler gate and the ranks of a probe start in its working directory."""
    agent = AgentProcess(tmp_path, profile="h100pciex2", environment={"GPUMON_PROBE__SCHEDULER_GATE": '["/bin/true"]'})
    agent.launcher = [GPUMON]
    agent.simulate({"idle": True})
    with running(agent):
        eventually(lambda: agent.post("/probe/allreduce")[0] == 202)
        assert eventually(lambda: agent.get("/probe/allreduce")["last"])["outcome"] == "ok"


@pytest.mark.skipif(os.geteuid() != 0, reason="grants capabilities")
def test_only_the_links_child_inherits_capabilities(tmp_path: Path) -> None:
    """The daemon keeps those of its unit, the host child gets them, and the sampler has none."""
    agent = AgentProcess(tmp_path, profile="t4x1")
    grant = ["setpriv", "--securebits=+noroot", "--inh-caps=-all,+syslog", "--ambient-caps=-all,+syslog"]
    agent.launcher = [*grant, *agent.launcher]
    with running(agent):
        children = eventually(lambda: [agent.children(f"gpumon.collectors.{name}") for name in ("sampler", "host")])
        sampler, host = (min(pids) for pids in children)
        assert {capabilities(agent.process.pid), capabilities(host)} == {CAP_SYSLOG}
        assert capabilities(sampler) == 0


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="grants capabilities")
def test_gate_and_ranks_inherit_no_capability(tmp_path: Path) -> None:
    """The command of the scheduler gate and the ranks of a probe run without the unit's capabilities."""
    seen = tmp_path / "gate"
    gate = ["/bin/sh", "-c", f"grep CapEff /proc/self/status > {seen}"]
    agent = AgentProcess(tmp_path, profile="h100pciex2", environment={"GPUMON_PROBE__SCHEDULER_GATE": json.dumps(gate)})
    agent.simulate({"idle": True})
    grant = ["setpriv", "--securebits=+noroot", "--inh-caps=-all,+syslog", "--ambient-caps=-all,+syslog"]
    agent.launcher = [*grant, *agent.launcher]
    with running(agent):
        assert capabilities(agent.process.pid) == CAP_SYSLOG
        eventually(lambda: agent.post("/probe/allreduce")[0] == 202)
        ranks = eventually(lambda: agent.children("gpumon/probe/worker"), every=0.01)
        assert {capabilities(pid) for pid in ranks} == {0}
        eventually(lambda: agent.get("/probe/allreduce")["last"])
        assert int(seen.read_text().split()[1], 16) == 0


@contextmanager
def running(agent: AgentProcess) -> Iterator[None]:
    """Run the agent meanwhile."""
    agent.start()
    try:
        yield
    finally:
        agent.stop()


def capabilities(pid: int) -> int:
    """Return the effective capabilities of a process."""
    status = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["CapEff"], 16)
