"""Rows for the all-reduce."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from gpumon.health.verdict import Action
from gpumon.probe.core.probes import ALL_REDUCE, PROBES
from gpumon.probe.core.published_figures import TABLE as PUBLISHED
from gpumon_sim.board import Profile
from gpumon_sim.faults.row import IDLE, MINUTE, Act, FaultRow, ScenarioStep, growing

SCHEDULED: Mapping[str, Mapping[str, Any]] = {"probe": {"enabled": True, "interval_seconds": MINUTE}}
"""A run every minute."""
TWO, FEW = 2, 4
HOPPER = 9
"""NVML's architecture number; from Hopper on there is NVLink SHARP."""


def can_run(profile: Profile) -> bool:
    """Return whether the all-reduce can run: on several GPUs without MIG."""
    return len(profile.bus_ids) > 1 and not profile.mig


def _more_than_two(profile: Profile) -> bool:
    """Return whether there are more than two ranks: with two, the slow rank cannot be identified."""
    return can_run(profile) and len(profile.bus_ids) > TWO


def _has_published_result(profile: Profile) -> bool:
    """Return whether a result for such a host is published, at a size that is measured here."""
    largest = max(PROBES[ALL_REDUCE].gpu.sizes)
    published = (row for row in PUBLISHED if re.fullmatch(row.names, profile.board.product))
    return can_run(profile) and any(
        (row.ranks, row.algorithm) == (len(profile.bus_ids), "default") and row.bytes <= largest for row in published
    )


def _sharp(profile: Profile) -> bool:
    """Return whether NVLink SHARP is used: not in a multi-node fabric, where only the ring is measured."""
    adds_up = bool(profile.switches) and profile.board.architecture >= HOPPER
    return can_run(profile) and adds_up and not (profile.fabric and profile.fabric.several_nodes)


def _after_good_runs(*runs: Act) -> tuple[ScenarioStep, ...]:
    """Return steps with one run after the other, on a host with a baseline."""
    steps = (ScenarioStep(at=10.0 + n * MINUTE, act=run) for n, run in enumerate(runs))
    return (ScenarioStep(act=Act.GOOD_RUNS), *steps)


def rows() -> Iterator[FaultRow]:
    yield from _slow()
    yield from _beyond_limits()
    yield from _wrong()
    yield from _without_result()
    yield from _silent()


def _row(on: Callable[[Profile], bool] = can_run) -> Callable[..., FaultRow]:
    return partial(FaultRow, on=on, before=IDLE)


def _slow() -> Iterator[FaultRow]:
    yield _row(_more_than_two)(
        name="one GPU slows the all-reduce down",
        check="gpu_allreduce_slow",
        steps=_after_good_runs(Act.RUN_SLOW_GPU),
    )
    node = partial(_row(), where="node", check="allreduce_slow")
    yield node(name="the all-reduce is slow on all GPUs", steps=_after_good_runs(Act.RUN_SLOW))
    yield node(
        name="the all-reduce is slow on the path between two GPUs only",
        steps=_after_good_runs(Act.RUN_SLOW_PATH),
        on=_more_than_two,
    )
    yield node(
        name="the all-reduce is slow except with the ring algorithm: NVLink SHARP is lost",
        steps=_after_good_runs(Act.RUN_WITHOUT_SHARP),
        on=_sharp,
    )
    yield node(
        name="the all-reduce is slower than published results from the first run",
        steps=(ScenarioStep(act=Act.RUN_SLOW),),
        on=_has_published_result,
    )


def _beyond_limits() -> Iterator[FaultRow]:
    node = partial(_row(), where="node")
    yield node(
        name="the smallest all-reduce takes 3 ms",
        check="allreduce_latency_high",
        steps=(ScenarioStep(act=Act.RUN_LATE_SMALL),),
    )
    yield node(
        name="the all-reduce is slower than the configured limit",
        check="allreduce_bandwidth_low",
        steps=(ScenarioStep(act=Act.RUN),),
        settings={"health": {"thresholds": {"min_allreduce_nccl_busbw_bytes_per_second": 1e13}}},
    )


def _wrong() -> Iterator[FaultRow]:
    yield _row()(
        name="one GPU returns wrong data in the all-reduce",
        check="gpu_allreduce_wrong",
        action=Action.REPLACE,
        steps=_after_good_runs(Act.RUN_WRONG_GPU),
    )
    yield _row()(
        name="the all-reduce returns wrong sums on all GPUs",
        check="allreduce_wrong",
        where="node",
        steps=_after_good_runs(Act.RUN_WRONG),
    )


def _without_result() -> Iterator[FaultRow]:
    node = partial(_row(), where="node", check="allreduce_failing")
    yield node(
        name="the all-reduce fails twice during an operation", steps=_after_good_runs(Act.RUN_BROKEN, Act.RUN_BROKEN)
    )
    yield node(name="the all-reduce times out twice", steps=_after_good_runs(Act.RUN_LATE, Act.RUN_LATE))
    yield node(
        name="the all-reduce fails twice before its first operation",
        action=Action.FIX,
        steps=_after_good_runs(Act.RUN_NOT_BEGUN, Act.RUN_NOT_BEGUN),
    )
    yield _row()(
        name="a rank of the all-reduce cannot be killed",
        check="allreduce_unkillable",
        where="node",
        action=Action.REBOOT,
        steps=_after_good_runs(Act.RUN_UNKILLABLE),
        within=3 * MINUTE,
    )


def _silent() -> Iterator[FaultRow]:
    node = partial(_row(), where="node", check="allreduce_stale", settings=SCHEDULED, within=35 * MINUTE)
    yield node(
        name="the all-reduce has no result for two periods on a free node",
        action=Action.FIX,
        steps=_after_good_runs(Act.RUN),
    )
    yield node(
        name="a GPU was reset and no all-reduce has run since",
        action=Action.NONE,
        steps=(
            *_after_good_runs(Act.RUN),
            ScenarioStep(at=2 * MINUTE, gpu={"set": {"energy": growing(90)}}),
        ),
        settings={"probe": {"enabled": True}},
        on=lambda profile: can_run(profile) and len(profile.bus_ids) <= FEW and not profile.guest,
    )
