"""Allocations are stored when they begin and end, and continue after a restart of the agent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from job_reports import SLURM, claim, owners
from loops import turn_until
from reduced_reports import healthy
from stores import StoringAgent, read

from gpumon.clock import boot_id
from gpumon.model.allocation import Allocation
from gpumon.services.allocation_writer import AllocationWriter
from gpumon.state.report import Report
from gpumon.store import allocations
from gpumon.store.allocations import AllocationQuery
from gpumon.store.store import Store


def report() -> Report:
    return replace(healthy(), boot_id=boot_id())


def run(path: Path, *reports: Report) -> tuple[Allocation, ...]:
    """Run an agent that has these Reports, one at each tick, and return what it restored."""
    agent = StoringAgent(path, reports[0])
    restored: list[tuple[Allocation, ...]] = []
    agent.persistence.start(lambda stored: restored.append(stored.allocations))
    turn_until(agent.loop, lambda: bool(restored))
    writer = AllocationWriter(agent.persistence.writes, lambda: agent.monitor.latest)
    for each in reports:
        agent.monitor.latest = each
        writer.tick()
    writer.stop()
    agent.persistence.close()
    return restored[0]


def test_an_allocation_is_stored_when_it_begins_and_when_it_ends(tmp_path: Path) -> None:
    """The store has the last state of each allocation, also of one that ended between two ticks."""
    first = owners(report(), mapped=(claim(SLURM, "GPU-0"), claim(SLURM, "GPU-1")))
    second = owners(first, at=120.0, mapped=(claim(SLURM, "GPU-1"),))
    run(tmp_path / "gpumon.db", first, second)
    with Store.open(tmp_path / "gpumon.db") as store:
        stored = read(store, allocations.find, AllocationQuery())
    assert {(each.uuid, each.ended, each.last_wall) for each in stored} == {
        ("GPU-0", True, 1e9 + 110.0),
        ("GPU-1", False, 1e9 + 120.0),
    }


def test_a_restarted_agent_continues_what_has_not_ended(tmp_path: Path) -> None:
    """The next run of the agent in the same boot reads the allocations that had not ended."""
    held = owners(report(), mapped=(claim(SLURM, "GPU-0"),))
    assert run(tmp_path / "gpumon.db", held) == ()
    assert run(tmp_path / "gpumon.db", report()) == held.jobs.allocations
