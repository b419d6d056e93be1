"""The probe in virtual time: simulated frames of ranks lead to the same results as on a host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.truth import ranks
from benchmarks.truth.faults import FAULTS
from benchmarks.truth.pairs import measure_pair
from benchmarks.truth.ranks import RUN_SECONDS, RankBehaviour, record_good_runs, run
from benchmarks.truth.world import World

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Yield an idle node with a median of earlier runs."""
    with World("l40sx4", tmp_path, "idle: true") as one:
        one.advance(30)
        record_good_runs(one)
        yield one


def outcomes(world: World, *behaviours: RankBehaviour) -> list[tuple[str, str]]:
    """Return the outcomes of consecutive runs."""
    before = len(world.report.probe.history)
    for behaviour in behaviours:
        run(behaviour)(world)
        world.advance(RUN_SECONDS + 1)
    return [(each.outcome, each.reason) for each in world.report.probe.history[before:]]


def test_results_of_ranks_are_evaluated_as_on_a_host(world: World) -> None:
    """The daemon's own preflight, run, evaluation and store give these outcomes."""
    world.advance(5)
    assert outcomes(world, ranks.HEALTHY, ranks.SLOW, ranks.UNCONFIRMED, ranks.WRONG) == [
        ("ok", ""),
        ("degraded", "baseline"),
        ("ok", ""),
        ("wrong", ""),
    ]
    assert outcomes(world, ranks.BROKEN, ranks.NOT_BEGUN, ranks.LATE, ranks.ABORTED) == [
        ("failed", "ranks"),
        ("failed", "setup"),
        ("timeout", "measure"),
        ("skipped", "busy"),
    ]
    world.restart()
    world.advance(30)
    assert [each.outcome for each in world.report.probe.history[-8:]] == [
        *("ok", "degraded", "ok", "wrong"),
        *("failed", "failed", "timeout", "skipped"),
    ]


def test_xids_of_killed_ranks_are_not_counted(world: World) -> None:
    """The Xids that the driver logs when the agent kills its ranks are not counted; the same Xid of a job is."""
    world.advance(5)
    assert outcomes(world, ranks.ABORTED, ranks.LATE) == [("skipped", "busy"), ("timeout", "measure")]
    world.advance(10)
    assert not [event for event in world.report.events if event.code == 45]
    bus_id = world.report.gpus[0].bus_id
    world.log_kernel_line(f"NVRM: Xid (PCI:{bus_id[4:-2].lower()}): 45, pid=99, name=train, Ch 00000008")
    world.advance(10)
    assert [event.count for event in world.report.events if event.code == 45] == [1]


def test_preflight_skips_runs_on_held_or_busy_gpus(world: World) -> None:
    """A hold, a job and a rank that cannot be killed each skip a run."""
    world.hold(60.0)
    world.advance(5)
    assert outcomes(world, ranks.HEALTHY) == [("skipped", "held")]
    world.edit("busy: true")
    world.advance(120)
    assert outcomes(world, ranks.HEALTHY) == [("skipped", "busy")]
    world.edit("idle: true")
    world.advance(120)
    assert outcomes(world, ranks.UNKILLABLE, ranks.HEALTHY) == [("timeout", "unkillable"), ("skipped", "busy")]


@pytest.mark.parametrize(("same", "under"), [(True, (True, False)), (False, (False, False))])
def test_a_slow_gpu_is_inhibited_by_its_own_heat_only(*, same: bool, under: tuple[bool, bool]) -> None:
    by_name = {fault.name: fault for fault in FAULTS}
    pair = (by_name["one GPU slows the all-reduce down"], by_name["clocks reduced by a hardware slowdown"])
    both = measure_pair(*pair, "b200x8", same_gpu=same)
    assert both.right
    assert both.inhibited == under
