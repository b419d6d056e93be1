"""The supervisor of the links child, with real children on a simulated node: hangs, kills, unkillable children."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from agents import command_line, descendants, unreaped
from loops import turn_for, turn_until
from unkillable import build, held

from gpumon.clock import boot_clock
from gpumon.model.orders import LinksOrders, Simulation
from gpumon.model.snapshot import LinksSnapshot
from gpumon.state.messages import LinksStatus
from gpumon.supervisor.deadlines import LinksDeadlines
from gpumon.supervisor.links_supervisor import MAX_ABANDONED, LinksSupervisor
from gpumon.supervisor.loop import Loop

ALL = {f"mlx5_{n}" for n in range(8)}
OTHERS = ALL - {"mlx5_3"}


class SupervisedLinks:
    """A supervisor, its loop, and its messages."""

    def __init__(self, folder: Path) -> None:
        self.loop = Loop()
        self.scenario = folder / "scenario.yml"
        self.suffer({})
        self.state = LinksStatus()
        self.snapshots: list[LinksSnapshot] = []
        simulation = Simulation(profile="h100x8", epoch=boot_clock(), scenario=str(self.scenario))
        self.supervisor = LinksSupervisor(
            self.loop,
            lambda page: LinksOrders(page=page, parent=os.getpid(), simulation=simulation, log_level="error"),
            on_snapshot=self.snapshots.append,
            on_state=self._note,
            deadlines=LinksDeadlines(read=1.0, first_retry=2.0),
        )
        self.supervisor.start()

    def suffer(self, ports: object) -> None:
        written = self.scenario.with_suffix(".new")
        written.write_text(yaml.safe_dump({"ports": ports}))
        written.rename(self.scenario)

    def devices(self) -> set[str]:
        """Return the devices of the last snapshot."""
        return {port.device for port in self.snapshots[-1].ports} if self.snapshots else set()

    def until(self, done: Callable[[], object], seconds: float = 60.0) -> None:
        turn_until(self.loop, lambda: bool(done()), seconds)

    def _note(self, state: LinksStatus) -> None:
        self.state = state


def children() -> set[int]:
    return {pid for pid in descendants(os.getpid()) if b"gpumon.collectors.links" in command_line(pid)}


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[SupervisedLinks]:
    before = unreaped()
    supervised = SupervisedLinks(tmp_path)
    supervised.until(lambda: supervised.devices() == ALL)
    yield supervised
    supervised.supervisor.stop()
    supervised.until(lambda: not supervised.supervisor.running and unreaped() <= before)


@pytest.mark.slow
def test_a_hung_device_is_quarantined_until_it_answers(watched: SupervisedLinks) -> None:
    """Another child reads the other ports, and the supervisor retries the hung device until it answers."""
    watched.suffer({"mlx5_3": {"hang": True}})
    watched.until(lambda: watched.state.quarantined)
    began = watched.state.quarantined["mlx5_3"].wall
    assert "class/infiniband/mlx5_3" in watched.state.quarantined["mlx5_3"].detail
    watched.until(lambda: watched.devices() == OTHERS)

    count = len(watched.snapshots)
    (tried,) = children()
    watched.until(lambda: children() and children() != {tried})
    watched.until(lambda: len(watched.snapshots) > count and watched.state.quarantined)
    assert watched.devices() == OTHERS
    assert watched.state.quarantined["mlx5_3"].wall == began

    watched.suffer({})
    watched.until(lambda: watched.devices() == ALL)
    watched.until(lambda: not watched.state.quarantined)
    assert watched.state.abandoned == ()


@pytest.mark.slow
def test_an_unkillable_child_is_reported_without_retries(watched: SupervisedLinks, tmp_path: Path) -> None:
    """Another child reads the other ports, and the device is retried only after the first child has ended."""
    (pid,) = children()
    with held(build(tmp_path), pid):
        watched.suffer({"mlx5_3": {"hang": True}})
        watched.until(lambda: watched.state.abandoned)
        assert f"links {pid}" in watched.state.abandoned[0]
        watched.until(lambda: watched.devices() == OTHERS)
        watched.suffer({})
        turn_for(watched.loop, 4.0)  # a retry would have been due after 2 s
        assert watched.devices() == OTHERS

    watched.until(lambda: not watched.state.abandoned)
    watched.until(lambda: watched.devices() == ALL)


@pytest.mark.slow
def test_the_status_shows_that_no_child_is_started(watched: SupervisedLinks, tmp_path: Path) -> None:
    """After the maximum number of abandoned children, the trouble is reported until a child sends a snapshot."""
    program, held_pids = build(tmp_path), set[int]()
    with ExitStack() as holders:
        for count in range(MAX_ABANDONED):
            watched.until(lambda: children() - held_pids)
            (pid,) = children() - held_pids
            held_pids.add(pid)
            holders.enter_context(held(program, pid))
            watched.suffer({f"mlx5_{n}": {"hang": True} for n in range(count + 1)})
            watched.until(lambda: len(watched.state.abandoned) == len(held_pids))
        assert "no links child" in watched.state.trouble
        watched.suffer({})

    watched.until(lambda: watched.devices() == ALL and not watched.state.trouble)


def test_a_dead_child_is_replaced_and_reported(watched: SupervisedLinks) -> None:
    """The status names the trouble until the next snapshot."""
    (pid,) = children()
    count = len(watched.snapshots)
    os.kill(pid, signal.SIGKILL)

    watched.until(lambda: watched.state.trouble)
    watched.until(lambda: len(watched.snapshots) > count)
    watched.until(lambda: not watched.state.trouble)
    assert watched.devices() == ALL
