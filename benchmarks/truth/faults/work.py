"""Rows for processes, utilization, settings and versions."""

from __future__ import annotations

from collections.abc import Iterator

from gpumon_sim.board import Profile
from gpumon_sim.sim_fault import MANY, NOW, several, whole

from benchmarks.truth.fault import FaultRow, ScenarioStep, once
from gpumon.health.check_row import MINUTE
from gpumon.health.verdict import Action


def rows() -> Iterator[FaultRow]:
    idle = {"idle": True}
    yield FaultRow(
        name="12 GB of memory in use without a process",
        check="gpu_memory_orphaned",
        action=Action.RESET,
        before=idle,
        steps=once(set={"memory_used": 12e9}),
        on=lambda profile: whole(profile) and not profile.numa_nodes,  # else the kernel may hold it
        within=10 * MINUTE,
    )
    yield FaultRow(
        name="busy without work: a kernel spins",
        check="gpu_spin",
        action=Action.RESTART,
        steps=once(set={"utilization": 100, "memory_utilization": 0, "power": 120}, gpm={"*": 0}),
        on=lambda profile: profile.board.power_limit > 500 and not profile.mig,
        within=20 * MINUTE,
        second_notification="the simulated GPU's engines are idle meanwhile, which is implausible",
    )
    yield FaultRow(
        name="a process that uses it is blocked in the kernel",
        check="gpu_process_stuck",
        where="node",
        action=Action.REBOOT,
        steps=(ScenarioStep(node={"stuck_processes": [{"gpus": [0], "since": NOW}]}),),
        within=8 * MINUTE,
    )
    yield FaultRow(
        name="a process that uses it waits for Lustre",
        check="gpu_process_stuck",
        where="node",
        action=Action.INSPECT,
        steps=(ScenarioStep(node={"stuck_processes": [{"gpus": [0], "since": NOW, "waits_in": "lustre"}]}),),
        on=lambda profile: not several(profile),
        within=8 * MINUTE,
    )
    yield FaultRow(
        name="an ECC change that waits for a reset",
        check="gpu_settings_pending",
        action=Action.RESET,
        steps=once(ecc={"pending": 0}),
        on=lambda profile: len(profile.bus_ids) < MANY,
        within=70 * MINUTE,
    )
    yield FaultRow(
        name="persistence mode is off",
        check="gpu_persistence_off",
        action=Action.NONE,
        steps=once(set={"persistence_mode": 0}),
        within=25 * MINUTE,
    )
    yield FaultRow(
        name="another driver than the expected one",
        check="node_version_drift",
        action=Action.FIX,
        where="node",
        steps=(ScenarioStep(act=lambda world: world.restart(health={"versions": {"driver": "999.1"}})),),
        within=25 * MINUTE,
    )
    yield FaultRow(
        name="another VBIOS than the expected one",
        check="gpu_version_drift",
        action=Action.FIX,
        steps=(ScenarioStep(act=lambda world: world.restart(health={"versions": {"vbios": "1.2.3"}})),),
        on=lambda profile: not several(profile),
        within=25 * MINUTE,
    )
    yield FaultRow(
        name="processes hold it for an hour and do not use it",
        check="gpu_idle",
        action=Action.NONE,
        steps=once(set={"utilization": 0}, gpm={"*": 0}),
        on=_few,
        within=65 * MINUTE,
    )
    yield FaultRow(
        name="busy for an hour, beyond the configured limit",
        check="gpu_busy",
        action=Action.NONE,
        before=idle,
        steps=once(set={"utilization": 100, "power": 300}),
        on=lambda profile: _few(profile) and profile.board.power_limit > 300,
        within=65 * MINUTE,
        settings={"health": {"thresholds": {"max_busy_ratio": 0.85}}},
    )


def _few(profile: Profile) -> bool:
    """Return whether an hour of the node takes little time to simulate."""
    return not profile.mig and len(profile.bus_ids) < MANY
