"""Detection in /proc of ranks whose agent has ended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpumon.runner import containment
from gpumon.runner.containment import AGENT, is_other_agent_alive

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
