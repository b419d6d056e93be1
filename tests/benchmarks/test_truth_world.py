"""`make truth`: the agent in virtual time finds faults as on a host, and generated results of ranks are judged so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpumon_sim.faults.row import FaultRow, of_gpu

from benchmarks.truth import ranks
from benchmarks.truth.measure import measure, measure_disturbance
from benchmarks.truth.page import is_missed
from benchmarks.truth.pairs import measure_pair
from benchmarks.truth.ranks import RUN_SECONDS, RankBehaviour, record_good_runs, run
from benchmarks.truth.rows import MEASURED_FAULTS, Disturbance
from benchmarks.truth.world import World

pytestmark = pytest.mark.slow


LOST = FaultRow(of_gpu(lost=True), name="lost", check="gpu_lost")
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


@pytest.fixture
def idle_world(tmp_path: Path) -> Iterator[World]:
    """Yield an idle node with a median of earlier runs."""
    with World("l40sx4", tmp_path, "idle: true") as one:
        one.advance(30)
        record_good_runs(one)
        yield one


def outcomes(idle_world: World, *behaviours: RankBehaviour) -> list[tuple[str, str]]:
    """Return the outcomes of consecutive runs."""
    before = len(idle_world.report.probe.history)
    for behaviour in behaviours:
        run(behaviour)(idle_world)
        idle_world.advance(RUN_SECONDS + 1)
    return [(each.outcome, each.reason) for each in idle_world.report.probe.history[before:]]


def test_results_of_ranks_are_evaluated_as_on_a_host(idle_world: World) -> None:
    """The daemon's own preflight, run, evaluation and store give these outcomes."""
    idle_world.advance(5)
    assert outcomes(idle_world, ranks.HEALTHY, ranks.SLOW, ranks.UNCONFIRMED, ranks.WRONG) == [
        ("ok", ""),
        ("degraded", "baseline"),
        ("ok", ""),
        ("wrong", ""),
    ]
    assert outcomes(idle_world, ranks.BROKEN, ranks.NOT_BEGUN, ranks.LATE, ranks.ABORTED) == [
        ("failed", "ranks"),
        ("failed", "setup"),
        ("timeout", "measure"),
        ("skipped", "busy"),
    ]
    idle_world.restart()
    idle_world.advance(30)
    assert [each.outcome for each in idle_world.report.probe.history[-8:]] == [
        *("ok", "degraded", "ok", "wrong"),
        *("failed", "failed", "timeout", "skipped"),
    ]


def test_xids_of_killed_ranks_are_not_counted(idle_world: World) -> None:
    """The Xids that the driver logs when the agent kills its ranks are not counted; the same Xid of a job is."""
    idle_world.advance(5)
    assert outcomes(idle_world, ranks.ABORTED, ranks.LATE) == [("skipped", "busy"), ("timeout", "measure")]
    idle_world.advance(10)
    assert not [event for event in idle_world.report.events if event.code == 45]
    bus_id = idle_world.report.gpus[0].bus_id
    idle_world.log_kernel_line(f"NVRM: Xid (PCI:{bus_id[4:-2].lower()}): 45, pid=99, name=train, Ch 00000008")
    idle_world.advance(10)
    assert [event.count for event in idle_world.report.events if event.code == 45] == [1]


def test_preflight_skips_runs_on_held_or_busy_gpus(idle_world: World) -> None:
    """A hold, a job and a rank that cannot be killed each skip a run."""
    idle_world.hold(60.0)
    idle_world.advance(5)
    assert outcomes(idle_world, ranks.HEALTHY) == [("skipped", "held")]
    idle_world.edit("busy: true")
    idle_world.advance(120)
    assert outcomes(idle_world, ranks.HEALTHY) == [("skipped", "busy")]
    idle_world.edit("idle: true")
    idle_world.advance(120)
    assert outcomes(idle_world, ranks.UNKILLABLE, ranks.HEALTHY) == [("timeout", "unkillable"), ("skipped", "busy")]


@pytest.mark.parametrize(("same", "under"), [(True, (True, False)), (False, (False, False))])
def test_a_slow_gpu_is_inhibited_by_its_own_heat_only(*, same: bool, under: tuple[bool, bool]) -> None:
    by_name = {fault.name: fault for fault in MEASURED_FAULTS}
    pair = (by_name["one GPU slows the all-reduce down"], by_name["clocks reduced by a hardware slowdown"])
    both = measure_pair(*pair, "b200x8", same_gpu=same)
    assert both.right
    assert both.inhibited == under
