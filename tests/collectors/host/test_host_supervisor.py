"""The supervisor of the host child, with real children on a simulated node: hangs, kills, unkillable children."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from agents import command_line, descendants, unreaped_children
from loops import turn_for, turn_until
from unkillable import build, held

from gpumon.clock import boot_clock
from gpumon.model.frame import Frame
from gpumon.model.orders import HostOrders, Simulation
from gpumon.model.snapshot import HostSnapshot, HostStatus, PortReadings
from gpumon.supervisor.child_supervisor import HOST, HostSupervisor
from gpumon.supervisor.loop import Loop

ALL = {f"mlx5_{n}" for n in range(8)}
OTHERS = ALL - {"mlx5_3"}


class SupervisedHost:
    """A supervisor, its loop, and its messages."""

    def __init__(self, folder: Path) -> None:
        self.loop = Loop()
        self.scenario = folder / "scenario.yml"
        self.suffer({})
        self.state = HostStatus()
        self.snapshots: list[HostSnapshot] = []
        simulation = Simulation(profile="h100x8", epoch=boot_clock(), scenario=str(self.scenario))
        self.supervisor = HostSupervisor(
            self.loop,
            HostOrders(simulation=simulation, log_level="error"),
            on_message=self._take,
            on_state=self._note,
            program=replace(HOST, deadlines=replace(HOST.deadlines, call=1.0, first_trial=2.0)),
        )
        self.supervisor.start()

    def suffer(self, ports: object) -> None:
        written = self.scenario.with_suffix(".new")
        written.write_text(yaml.safe_dump({"ports": ports}))
        written.rename(self.scenario)

    def devices(self) -> set[str]:
        """Return the devices of the last snapshot."""
        return {port.device for port in self.snapshots[-1].value(PortReadings).ports} if self.snapshots else set()

    def until(self, done: Callable[[], object], seconds: float = 60.0) -> None:
        turn_until(self.loop, lambda: bool(done()), seconds)

    def _take(self, message: Frame) -> None:
        assert isinstance(message, HostSnapshot)
        self.snapshots.append(message)

    def _note(self, state: HostStatus) -> None:
        self.state = state


def children() -> set[int]:
    return {pid for pid in descendants(os.getpid()) if b"gpumon.collectors.host" in command_line(pid)}


@pytest.fixture
def supervised_host(tmp_path: Path) -> Iterator[SupervisedHost]:
    before = unreaped_children()
    supervised = SupervisedHost(tmp_path)
    supervised.until(lambda: supervised.devices() == ALL)
    yield supervised
    supervised.supervisor.stop()
    supervised.until(lambda: not supervised.supervisor.running and unreaped_children() <= before)


@pytest.mark.slow
def test_a_hung_device_is_quarantined_until_it_answers(supervised_host: SupervisedHost) -> None:
    """Another child reads the other ports, and the supervisor retries the hung device until it answers."""
    supervised_host.suffer({"mlx5_3": {"hang": True}})
    supervised_host.until(lambda: supervised_host.state.quarantined)
    began = supervised_host.state.quarantined["mlx5_3"].wall
    assert "class/infiniband/mlx5_3" in supervised_host.state.quarantined["mlx5_3"].detail
    supervised_host.until(lambda: supervised_host.devices() == OTHERS)

    count = len(supervised_host.snapshots)
    present = children()  # perhaps with a trial
    supervised_host.until(lambda: children() - present)
    supervised_host.until(lambda: len(supervised_host.snapshots) > count and supervised_host.state.quarantined)
    assert supervised_host.devices() == OTHERS
    assert supervised_host.state.quarantined["mlx5_3"].wall == began

    supervised_host.suffer({})
    supervised_host.until(lambda: supervised_host.devices() == ALL)
    supervised_host.until(lambda: not supervised_host.state.quarantined)
    assert supervised_host.state.abandoned == ()


@pytest.mark.slow
def test_an_unkillable_child_is_reported_without_retries(supervised_host: SupervisedHost, tmp_path: Path) -> None:
    """Another child reads the other ports, and the device is retried only after the first child has ended."""
    (pid,) = children()
    with held(build(tmp_path), pid):
        supervised_host.suffer({"mlx5_3": {"hang": True}})
        supervised_host.until(lambda: supervised_host.state.abandoned)
        assert f"host {pid}" in supervised_host.state.abandoned[0]
        supervised_host.until(lambda: supervised_host.devices() == OTHERS)
        supervised_host.suffer({})
        turn_for(supervised_host.loop, 4.0)  # a retry would have been due after 2 s
        assert supervised_host.devices() == OTHERS

    supervised_host.until(lambda: not supervised_host.state.abandoned)
    supervised_host.until(lambda: supervised_host.devices() == ALL)


@pytest.mark.slow
def test_the_status_shows_that_no_child_is_started(supervised_host: SupervisedHost, tmp_path: Path) -> None:
    """After the maximum number of abandoned children, the trouble is reported until a child sends a snapshot."""
    program, held_pids = build(tmp_path), set[int]()
    with ExitStack() as holders:
        for count in range(HOST.max_abandoned):
            supervised_host.until(lambda: children() - held_pids)
            (pid,) = children() - held_pids
            held_pids.add(pid)
            holders.enter_context(held(program, pid))
            supervised_host.suffer({f"mlx5_{n}": {"hang": True} for n in range(count + 1)})
            supervised_host.until(lambda: len(supervised_host.state.abandoned) == len(held_pids))
        assert "no host child" in supervised_host.state.trouble
        supervised_host.suffer({})

    supervised_host.until(lambda: supervised_host.devices() == ALL and not supervised_host.state.trouble)


def test_a_dead_child_is_replaced_and_reported(supervised_host: SupervisedHost) -> None:
    """The status names the trouble until the next snapshot."""
    (pid,) = children()
    count = len(supervised_host.snapshots)
    os.kill(pid, signal.SIGKILL)

    supervised_host.until(lambda: supervised_host.state.trouble)
    supervised_host.until(lambda: len(supervised_host.snapshots) > count)
    supervised_host.until(lambda: not supervised_host.state.trouble)
    assert supervised_host.devices() == ALL
