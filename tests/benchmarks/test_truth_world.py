"""The agent in virtual time detects faults as on a host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.truth.fault import Disturbance, FaultRow, once
from benchmarks.truth.measure import measure, measure_disturbance
from benchmarks.truth.page import is_missed
from benchmarks.truth.world import World

pytestmark = pytest.mark.slow


LOST = FaultRow(name="lost", check="gpu_lost", steps=once(lost=True))
HUNG = {"hang": ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"]}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World("h100pciex2", tmp_path, "busy: true") as one:
        one.advance(30)
        yield one


def test_a_healthy_node_is_polled_in_virtual_time(world: World) -> None:
    """Ten virtual minutes have every poll, and counters grow accordingly."""
    before = world.report.gpus[0].gpu.energy_joules_total or 0.0
    world.advance(600)
    gained = (world.report.gpus[0].gpu.energy_joules_total or 0.0) - before
    assert 600 * 100 < gained < 600 * 400
    assert world.verdicts == ()


def test_a_fault_is_detected_on_its_gpu() -> None:
    """The outcome has check, GPU, action and virtual time."""
    outcome = measure(LOST, "h100pciex2")
    assert not is_missed(outcome)
    assert outcome.seconds is not None
    assert outcome.seconds <= 20
    assert outcome.action == "reboot"


def test_a_disabled_check_is_a_miss() -> None:
    """The measurement can fail: with its check disabled the fault is not detected."""
    outcome = measure(LOST, "h100pciex2", health={"disabled_checks": ("gpu_lost",)})
    assert is_missed(outcome)
    assert outcome.seconds is None


def test_false_verdicts_are_counted() -> None:
    """A lost GPU in place of a benign disturbance is counted as a false verdict."""
    calm = measure_disturbance(Disturbance(name="lost", before={"gpus": {0: {"lost": True}}}), "t4x1", 0.05)
    assert ("gpu_lost", "fail") in calm.verdicts_raised


def test_a_hung_call_quarantines_its_gpu_until_it_answers(world: World) -> None:
    """The real supervisor kills and replaces the sampler and readmits the GPU."""
    world.edit(f"busy: true\ngpus: {{1: {HUNG}}}")
    world.advance(40)
    assert [each.fault for each in world.report.gpus] == [None, "stuck"]
    world.edit("busy: true")
    world.advance(60)
    assert [each.fault for each in world.report.gpus] == [None, None]


def test_a_verdict_survives_a_restart_and_a_reboot(world: World) -> None:
    world.edit("gpus: {1: {lost: true}}")
    world.advance(30)
    world.restart()
    world.advance(20)
    assert "gpu_lost" in {each.check for each in world.verdicts}
    world.edit("busy: true")
    world.reboot()
    world.advance(60)
    assert "gpu_lost" in {each.check for each in world.verdicts}
    assert [each.fault for each in world.report.gpus] == [None, None]


def test_the_clocks_of_the_process_are_restored(tmp_path: Path) -> None:
    before = time.time, time.sleep, time.clock_gettime
    with World("t4x1", tmp_path) as one:
        one.advance(10)
        assert time.time() > 1.8e9
    assert (time.time, time.sleep, time.clock_gettime) == before
