"""Rows for processes, utilization, settings and versions."""

from __future__ import annotations

from collections.abc import Iterator

from gpumon.health.verdict import Action
from gpumon_sim.board import Profile
from gpumon_sim.faults.conditions import MANY, several
from gpumon_sim.faults.row import IDLE, MINUTE, FaultRow, ScenarioStep, of_gpu


def rows() -> Iterator[FaultRow]:
    yield FaultRow(
        name="busy without work: a kernel spins",
        check="gpu_spin",
        action=Action.RESTART,
        steps=of_gpu(set={"utilization": 100, "memory_utilization": 0, "power": 120}, gpm={"*": 0}),
        on=lambda profile: profile.board.power_limit > 500 and not profile.mig,
        within=20 * MINUTE,
        second_notification="the simulated GPU's engines are idle meanwhile, which is implausible",
    )
    yield FaultRow(
        name="another driver than the expected one",
        check="node_version_drift",
        action=Action.FIX,
        where="node",
        steps=(ScenarioStep(settings={"health": {"versions": {"driver": "999.1"}}}),),
        within=25 * MINUTE,
    )
    yield FaultRow(
        name="another VBIOS than the expected one",
        check="gpu_version_drift",
        action=Action.FIX,
        steps=(ScenarioStep(settings={"health": {"versions": {"vbios": "1.2.3"}}}),),
        on=lambda profile: not several(profile),
        within=25 * MINUTE,
    )
    yield FaultRow(
        name="processes hold it for an hour and do not use it",
        check="gpu_idle",
        action=Action.NONE,
        steps=of_gpu(set={"utilization": 0}, gpm={"*": 0}),
        on=_few,
        within=65 * MINUTE,
    )
    yield FaultRow(
        name="busy for an hour, beyond the configured limit",
        check="gpu_busy",
        action=Action.NONE,
        before=IDLE,
        steps=of_gpu(set={"utilization": 100, "power": 300}),
        on=lambda profile: _few(profile) and profile.board.power_limit > 300,
        within=65 * MINUTE,
        settings={"health": {"thresholds": {"max_busy_ratio": 0.85}}},
    )


def _few(profile: Profile) -> bool:
    """Return whether an hour of the node takes little time to simulate."""
    return not profile.mig and len(profile.bus_ids) < MANY
