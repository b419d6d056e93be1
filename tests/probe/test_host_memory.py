"""What the probe reads in /proc and in control groups: free memory, and ranks whose agent has ended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpumon.runner import containment
from gpumon.runner.containment import AGENT, is_other_agent_alive
from gpumon.runner.gather_facts import available_bytes

KIB = 1024


def write_files(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_available_memory_is_the_minimum_of_host_and_cgroups(tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    5000 kB\n"})
    assert available_bytes(tmp_path) == 5000 * KIB
    groups = {
        "proc/self/cgroup": "1:cpu:/old\n0::/pod/agent\n",
        "sys/fs/cgroup/pod/agent/memory.max": "max\n",
        "sys/fs/cgroup/pod/agent/memory.current": "100\n",
        "sys/fs/cgroup/pod/memory.max": f"{4000 * KIB}\n",
        "sys/fs/cgroup/pod/memory.current": f"{1000 * KIB}\n",
    }
    write_files(tmp_path, groups)
    assert available_bytes(tmp_path) == 3000 * KIB


def test_inactive_file_pages_count_as_available(tmp_path: Path) -> None:
    """Inactive file pages count as available, because the kernel reclaims them at once."""
    files = {
        "proc/self/cgroup": "0::/agent\n",
        "sys/fs/cgroup/agent/memory.max": f"{8000 * KIB}\n",
        "sys/fs/cgroup/agent/memory.current": f"{7500 * KIB}\n",
        "sys/fs/cgroup/agent/memory.stat": f"anon {400 * KIB}\ninactive_file {7000 * KIB}\nactive_file {100 * KIB}\n",
    }
    write_files(tmp_path, files)
    assert available_bytes(tmp_path) == 7500 * KIB
    (tmp_path / "sys/fs/cgroup/agent/memory.stat").write_text(f"inactive_file {9000 * KIB}\n")
    assert available_bytes(tmp_path) == 8000 * KIB


def test_available_memory_is_unknown_without_proc_files(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None


RANK_PID, AGENT_PID, OWN_CLOCK, OTHER_CLOCK = 50, 7, 1, 2


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a /proc with a rank of an agent that started at 100, and this add_process in the same namespaces."""
    monkeypatch.setattr(containment, "PROC", tmp_path)
    for name in ("pid", str(OWN_CLOCK), str(OTHER_CLOCK)):
        (tmp_path / name).touch()
    for pid in ("self", str(RANK_PID)):
        add_process(tmp_path, pid, 500, OWN_CLOCK)
    (tmp_path / str(RANK_PID) / "environ").write_text(f"{AGENT}={AGENT_PID}-100\0")
    return tmp_path


def add_process(proc: Path, pid: str, started: int, clock: int) -> None:
    (proc / pid / "ns").mkdir(parents=True)
    (proc / pid / "stat").write_text(f"{pid} (a b) S " + "0 " * 18 + f"{started} 0\n")
    os.link(proc / "pid", proc / pid / "ns" / "pid")
    os.link(proc / str(clock), proc / pid / "ns" / "time")


@pytest.mark.parametrize(
    ("began", "clock", "alive"),
    [(100, OWN_CLOCK, True), (300, OWN_CLOCK, False), (300, OTHER_CLOCK, True), (None, OWN_CLOCK, False)],
)
def test_an_agent_in_another_time_namespace_counts_as_alive(
    proc: Path, began: int | None, clock: int, *, alive: bool
) -> None:
    """The start time of an agent in another time namespace is not compared, so its ranks are not killed."""
    if began is not None:
        add_process(proc, str(AGENT_PID), began, clock)
    assert containment._is_orphan(proc / str(RANK_PID)) == (not alive)
    assert is_other_agent_alive(f"{AGENT_PID}-100") == alive
