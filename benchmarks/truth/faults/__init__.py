"""TABLE: every fault that is measured, where it can happen, and its expected verdict.

The examples of the simulator's table of faults, `gpumon_sim.sim_faults`, that name a check are rows too. The rows here
have several keys or steps, lines of the kernel log, actions, settings, or two notifications.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpumon_sim.sim_faults import FAULTS as SIMULATED

from benchmarks.truth.fault import FaultRow, ScenarioStep, after_restart
from benchmarks.truth.faults import agent, allreduce, jobs, links, ports, unreadable, work, xids
from gpumon.health.checks.probe import is_about
from gpumon.health.table import CHECKS
from gpumon.probe.core.probes import ALL_REDUCE, PROBES


def _examples() -> Iterator[FaultRow]:
    """Yield the rows of the simulator's examples that name a check."""
    for key, example in ((fault.key, each) for fault in SIMULATED.values() for each in fault.examples if each.check):
        scenario = {key: example.value}
        fault: dict[str, Any] = {"node" if example.gpu is None else "gpu": scenario}
        yield FaultRow(
            name=example.name,
            check=example.check,
            where=example.about or next(iter(fault)),
            action=example.action,
            steps=after_restart(**fault) if example.restarts else (ScenarioStep(**fault),),
            on=example.on,
            within=example.within,
            before=example.before,
            hides=example.hides or example.restarts,
        )


FAULTS: tuple[FaultRow, ...] = (
    *unreadable.rows(),
    *_examples(),
    *xids.rows(),
    *links.rows(),
    *ports.rows(),
    *work.rows(),
    *jobs.rows(),
    *allreduce.rows(),
    *agent.rows(),
)
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
