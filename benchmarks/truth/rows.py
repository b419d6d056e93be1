"""The rows that are measured: faults of the simulator's table, and disturbances. What the steps of a fault do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpumon_sim.board import Profile
from gpumon_sim.faults.conditions import anywhere
from gpumon_sim.faults.row import BUSY, Act, FaultRow
from gpumon_sim.faults.table import FAULTS

from benchmarks.truth import ranks
from benchmarks.truth.ranks import record_good_runs, run
from benchmarks.truth.world import World
from gpumon.health.checks.probe import is_about
from gpumon.health.table import CHECKS
from gpumon.probe.core.probes import ALL_REDUCE, PROBES

MEASURED_FAULTS: tuple[FaultRow, ...] = tuple(fault for fault in FAULTS if fault.check)
UNTESTED: Mapping[str, str] = {
    "gpumon_history_unread": "needs an unreadable store at startup. See tests/health/checks/test_agent_checks.py",
    "gpumon_notifications_failing": "needs a receiver. See tests/services/test_senders.py",
    "gpumon_check_failing": "reports a bug in a check. See tests/health/test_evaluation.py",
    **{
        check.name: "is measured with the all-reduce, whose functions it shares"
        for probe in PROBES.values()
        for check in CHECKS
        if probe.name != ALL_REDUCE and is_about(probe, check.name)
    },
}
"""Checks without a fault in the table, with the reason."""


def _hold_processes(world: World) -> None:
    world.host.unkillable = True


ACTS: Mapping[Act, Callable[[World], object]] = {
    Act.RESTART: World.restart,
    Act.REBOOT: World.reboot,
    Act.PLANNED_REBOOT: World.planned_reboot,
    Act.HOLD_PROCESSES: _hold_processes,
    Act.LOSE_RECORDS: World.lose_records,
    Act.LOSE_LOG: World.lose_log,
    Act.BREAK_CONFIGURATION: lambda world: world.reload(good=False),
    Act.FILL_DISK: World.fill_disk,
    Act.GOOD_RUNS: record_good_runs,
    Act.RUN: run(),
    Act.RUN_SLOW: run(ranks.SLOW),
    Act.RUN_SLOW_GPU: run(ranks.SLOW_GPU),
    Act.RUN_SLOW_PATH: run(ranks.SLOW_PATH),
    Act.RUN_WITHOUT_SHARP: run(ranks.WITHOUT_SHARP),
    Act.RUN_LATE_SMALL: run(ranks.LATE_SMALL),
    Act.RUN_WRONG: run(ranks.WRONG),
    Act.RUN_WRONG_GPU: run(ranks.WRONG_GPU),
    Act.RUN_BROKEN: run(ranks.BROKEN),
    Act.RUN_NOT_BEGUN: run(ranks.NOT_BEGUN),
    Act.RUN_LATE: run(ranks.LATE),
    Act.RUN_UNKILLABLE: run(ranks.UNKILLABLE),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """One row of the table of disturbances, which are no faults."""

    name: str
    act: Callable[[World], object] | None = None
    """Action that is repeated every `every` seconds."""
    every: float = 600.0
    before: Mapping[str, Any] = field(default_factory=lambda: BUSY)
    """Scenario of the node at the start."""
    on: Callable[[Profile], bool] = anywhere
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    expected_verdicts: Mapping[str, str] = field(default_factory=dict)
    """Checks that must raise a verdict below `fail`, with the reason in one sentence."""
