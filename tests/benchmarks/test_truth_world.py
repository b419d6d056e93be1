"""The agent in virtual time: what happens to its node is seen, as on a host whose clock nobody hurries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.truth.fault import Disturbance, Fault, once
from benchmarks.truth.measure import measure, measure_disturbance
from benchmarks.truth.page import missed
from benchmarks.truth.world import World

pytestmark = pytest.mark.slow


LOST = Fault(name="lost", check="gpu_lost", steps=once(lost=True))
HUNG = {"hang": ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"]}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World("h100pciex2", tmp_path, "busy: true") as one:
        one.go_on(30)
        yield one


def test_a_healthy_node_is_read_while_time_flies(world: World) -> None:
    """Ten minutes pass in far less, with every poll and every counter."""
    before = world.report.gpus[0].gpu.energy_joules_total or 0.0
    world.go_on(600)
    gained = (world.report.gpus[0].gpu.energy_joules_total or 0.0) - before
    assert 600 * 100 < gained < 600 * 400
    assert world.verdicts == ()


def test_a_fault_is_found_and_blamed_on_its_gpu() -> None:
    """The measure itself: which check, where, after how long."""
    outcome = measure(LOST, "h100pciex2")
    assert not missed(outcome)
    assert outcome.seconds is not None
    assert outcome.seconds <= 20
    assert outcome.action == "reboot"


def test_a_check_that_is_not_made_is_a_miss() -> None:
    """The measure can fail: with its check switched off the fault is not found."""
    outcome = measure(LOST, "h100pciex2", health={"disabled_checks": ("gpu_lost",)})
    assert missed(outcome)
    assert outcome.seconds is None


def test_what_is_said_of_no_fault_is_counted() -> None:
    """The other measure can fail, too: a lost GPU is no benign disturbance."""
    calm = measure_disturbance(Disturbance(name="lost", before={"gpus": {0: {"lost": True}}}), "t4x1", 0.05)
    assert ("gpu_lost", "fail") in calm.verdicts_raised


def test_a_hung_call_leaves_its_gpu_aside_and_it_comes_back(world: World) -> None:
    """The real supervisor of samplers: killed, replaced, tried again."""
    world.edit(f"busy: true\ngpus: {{1: {HUNG}}}")
    world.go_on(40)
    assert [one.fault for one in world.report.gpus] == [None, "stuck"]
    world.edit("busy: true")
    world.go_on(60)
    assert [one.fault for one in world.report.gpus] == [None, None]


def test_a_verdict_outlives_the_agent_and_the_boot(world: World) -> None:
    """The real store: kill -9, and then the host."""
    world.edit("gpus: {1: {lost: true}}")
    world.go_on(30)
    world.restart()
    world.go_on(20)
    assert "gpu_lost" in {one.check for one in world.verdicts}
    world.edit("busy: true")
    world.reboot()
    world.go_on(60)
    assert "gpu_lost" in {one.check for one in world.verdicts}
    assert [one.fault for one in world.report.gpus] == [None, None]


def test_the_clocks_of_this_process_are_its_own_again(tmp_path: Path) -> None:
    """Nothing of the host in virtual time is left behind."""
    before = time.time, time.sleep, time.clock_gettime
    with World("t4x1", tmp_path) as one:
        one.go_on(10)
        assert time.time() > 1.8e9
    assert (time.time, time.sleep, time.clock_gettime) == before
