"""The supervisor of samplers, with real children on a simulated node: late, abandoned, silent firmware, crash loops."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from agents import command_line, descendants, unreaped
from loops import turn_for, turn_until
from unkillable import build, held

from gpumon.clock import boot_clock
from gpumon.model.orders import SamplerOrders, Simulation
from gpumon.model.snapshot import ChildMessage, Snapshot, XidEvent
from gpumon.state.messages import SamplerStatus
from gpumon.supervisor.deadlines import SamplerDeadlines
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.sampler_supervisor import MAX_ABANDONED, MAX_EVENT_FAILURES, SamplerSupervisor

HANG = "nvmlDeviceGetUtilizationRates"
DEADLINES = replace(SamplerDeadlines().scale_value(0.1), call=1.0, opening=60.0, silence=90.0, grace=3.0, early=600.0)
"""A tenth of the real deadlines, except for those that depend on the processor time of the child."""


class Watched:
    """A supervisor, its loop, and what it told."""

    def __init__(self, folder: Path) -> None:
        self.loop = Loop()
        self.scenario = folder / "scenario.yml"
        self.suffer({})
        self.state = SamplerStatus()
        self.snapshots: list[Snapshot] = []
        self.xids: list[int] = []
        self._last: set[int] = set()
        self._answered: set[int] = set()
        self._partial = False
        simulation = Simulation(profile="h100x8", epoch=boot_clock(), scenario=str(self.scenario))
        self.supervisor = SamplerSupervisor(
            self.loop,
            lambda page: SamplerOrders(page=page, parent=os.getpid(), simulation=simulation, log_level="error"),
            on_message=self._take,
            on_state=self._note,
            deadlines=DEADLINES,
        )
        self.supervisor.start()

    def suffer(self, gpus: object, **node: object) -> None:
        written = self.scenario.with_suffix(".new")
        written.write_text(yaml.safe_dump({"idle": True, "gpus": gpus, **node}))
        written.rename(self.scenario)

    def polled(self) -> set[int]:
        """GPUs of the last poll that have readings."""
        return self._last

    def holders(self) -> set[int]:
        """GPUs that somebody holds, by the last complete poll."""
        return {seen.index for seen in self.snapshots[-1].gpus if seen.pids and seen.index is not None}

    def until(self, done: object, seconds: float = 90.0) -> None:
        assert callable(done)
        turn_until(self.loop, lambda: bool(done()), seconds)

    def _take(self, message: ChildMessage) -> None:
        if isinstance(message, XidEvent):
            self.xids.append(message.xid)
        elif isinstance(message, Snapshot):
            answers = {seen.index for seen in message.gpus if seen.gpu is not None and seen.index is not None}
            self._answered = answers | (self._answered if self._partial else set())
            self._partial = not message.complete
            if message.complete:
                self.snapshots.append(message)
                self._last = self._answered

    def _note(self, state: SamplerStatus) -> None:
        self.state = state


def samplers() -> set[int]:
    """Pids of the samplers that this process has started."""
    return {pid for pid in descendants(os.getpid()) if b"gpumon.collectors.sampler" in command_line(pid)}


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    before = unreaped()
    one = Watched(tmp_path)
    one.until(lambda: len(one.polled()) == 8)
    yield one
    one.supervisor.stop()
    one.until(lambda: not one.supervisor.running and unreaped() <= before)


@pytest.mark.slow
def test_a_child_that_sigkill_does_not_end_is_named_and_no_trial_joins_it(watched: Watched, tmp_path: Path) -> None:
    """A new sampler goes on without the GPU; only when the old child has ended is the GPU tried again."""
    (sampler,) = samplers()
    with held(build(tmp_path), sampler):
        watched.suffer({5: {"hang": [HANG]}})
        watched.until(lambda: watched.state.abandoned)
        assert HANG in watched.state.abandoned[0]
        watched.until(lambda: watched.polled() == {0, 1, 2, 3, 4, 6, 7})
        watched.suffer({})
        turn_for(watched.loop, 2 * DEADLINES.first_trial)  # a trial would be due
        assert len(watched.state.quarantined) == 1

    watched.until(lambda: not watched.state.abandoned)
    watched.until(lambda: len(watched.polled()) == 8)
    assert not watched.state.quarantined


@pytest.mark.slow
def test_beyond_three_abandoned_children_no_sampler_is_started(watched: Watched, tmp_path: Path) -> None:
    """Whatever opens the driver now is lost to it: the supervisor gives up for a while, and says so."""
    program = build(tmp_path)
    kept: set[int] = set()
    with ExitStack() as holders:
        for gpu in range(MAX_ABANDONED):
            watched.until(lambda left=gpu: len(watched.polled()) == 8 - left)
            (pid,) = samplers() - kept
            kept.add(pid)
            holders.enter_context(held(program, pid))
            watched.suffer({n: {"hang": [HANG]} for n in range(gpu + 1)})
            watched.until(lambda left=gpu: len(watched.state.abandoned) == left + 1)
        watched.until(lambda: watched.state.gave_up)
        seen = len(watched.snapshots)
        turn_for(watched.loop, 3.0)
        assert len(watched.snapshots) == seen
        watched.suffer({})

    watched.until(lambda: len(watched.polled()) == 8)


def test_silent_firmware_sets_a_gpu_aside_at_once(watched: Watched) -> None:
    """Xid 119: no call is made on the GPU until a trial has shown that it answers."""
    watched.suffer({2: {"xids": [119], "hang": [HANG]}})
    watched.until(lambda: watched.state.quarantined)
    (aside,) = watched.state.quarantined.values()
    assert aside.detail == "Firmware silent since Xid 119"
    watched.until(lambda: watched.polled() == {0, 1, 3, 4, 5, 6, 7})

    watched.suffer({2: {"xids": [119]}})
    watched.until(lambda: len(watched.polled()) == 8)
    watched.until(lambda: watched.state.restarts["readmit"] == 1)


@pytest.mark.slow
def test_a_library_that_crashes_for_no_gpu_is_started_less_and_less_often(watched: Watched) -> None:
    """Each crash doubles the pause, so that a broken driver costs little."""
    watched.suffer({}, crash=["nvmlDeviceGetCount*"])
    watched.until(lambda: watched.state.restarts.get("crash", 0) >= 3)
    began = boot_clock()
    watched.until(lambda: watched.state.restarts.get("crash", 0) >= 4)

    assert boot_clock() - began > 4 * DEADLINES.first_restart  # a lower bound: doubled twice
    watched.suffer({})
    watched.until(lambda: len(watched.polled()) == 8)


def test_xids_that_came_with_silent_firmware_are_not_lost(watched: Watched) -> None:
    """What the sampler told before it was ended is taken, of its neighbours as well."""
    watched.suffer({4: {"xids": [119, 79], "hang": [HANG]}, 6: {"xids": [94]}})
    watched.until(lambda: watched.state.quarantined)
    watched.until(lambda: len(watched.polled()) == 7)

    assert sorted(watched.xids) == [79, 94, 119]


@pytest.mark.slow
def test_an_event_set_that_hangs_costs_the_xids_and_not_the_readings(watched: Watched) -> None:
    """After a few hangs the sampler asks for no more events, and reads on."""
    watched.suffer({}, hang=["nvmlEventSetWait*"])
    watched.until(lambda: watched.state.restarts["deadline"] == MAX_EVENT_FAILURES)
    seen = len(watched.snapshots)
    watched.until(lambda: len(watched.snapshots) > seen + 3)

    assert watched.state.restarts["deadline"] == MAX_EVENT_FAILURES


def test_a_sampler_that_is_told_to_watch_sees_at_once_who_comes(watched: Watched) -> None:
    """It need not be replaced for that; the next one watches too. The slow tier would take fifteen polls or more."""
    watched.supervisor.watch(closely=True)
    watched.until(lambda: len(watched.snapshots) > 1)
    assert polls_until(watched, {3}) <= SOON

    watched.supervisor.replace("configuration")
    watched.until(lambda: watched.state.restarts["configuration"] == 1)
    watched.until(lambda: len(watched.polled()) == 8 and "rare" not in watched.snapshots[-1].durations)
    assert polls_until(watched, {3, 5}) <= SOON


SOON = 5
"""Polls: the one that is on its way, and what a change of the scenario takes to be read."""


def polls_until(watched: Watched, busy: set[int]) -> int:
    """How many polls it takes to see that somebody holds these GPUs."""
    watched.suffer({gpu: {"busy": True} for gpu in busy})
    before = len(watched.snapshots)
    watched.until(lambda: watched.holders() == busy)
    return len(watched.snapshots) - before
