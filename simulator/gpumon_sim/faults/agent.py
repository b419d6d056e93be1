"""Rows for the agent and the services that it uses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gpumon.health.verdict import Action
from gpumon_sim.faults.row import MINUTE, TEMPERATURE_CALLS, Act, FaultRow, ScenarioStep, growing

_agent = partial(FaultRow, where="node", action=Action.FIX)


def rows() -> Iterator[FaultRow]:
    yield FaultRow(
        name="a process of the agent cannot be ended",
        check="gpumon_child_abandoned",
        where="node",
        action=Action.REBOOT,
        steps=(ScenarioStep(gpu={"hang_forever": TEMPERATURE_CALLS}, act=Act.HOLD_PROCESSES),),
    )
    yield FaultRow(
        name="a driver call never returns, and its process cannot be killed",
        check="gpu_stuck",
        action=Action.REBOOT,
        steps=(ScenarioStep(gpu={"hang_forever": TEMPERATURE_CALLS}, act=Act.HOLD_PROCESSES),),
    )
    yield _agent(
        name="the library crashes now and then",
        check="gpumon_sampler_restarting",
        steps=tuple(
            step
            for n in range(5)
            for step in (
                ScenarioStep(at=60.0 * n, node={"crash": ["nvmlDeviceGetCount*"]}),
                ScenarioStep(at=60.0 * n + 6),
            )
        ),
    )
    yield _agent(
        name="the agent crashes three times in a row",
        check="gpumon_restarting",
        steps=tuple(ScenarioStep(at=90.0 * n, act=Act.RESTART) for n in range(4)),
    )
    yield _agent(
        name="the kernel log was overwritten before it was read",
        check="gpumon_kernel_log_lost",
        steps=(ScenarioStep(act=Act.LOSE_RECORDS),),
    )
    yield FaultRow(
        name="a GPU that was reset three times fails again",
        check="node_repeat_offender",
        where="node",
        action=Action.REPLACE,
        steps=tuple(
            step
            for n in range(3)
            for step in (
                ScenarioStep(at=1000.0 * n, gpu={"xids": [95]}),
                ScenarioStep(at=1000.0 * n + 240, gpu={"set": {"energy": growing(300)}}),
            )
        ),
        on=lambda profile: not profile.guest,
        within=5 * MINUTE,
        second_notification="the fault, and the node's verdict that it keeps coming back",
    )
    yield _agent(
        name="the kernel log cannot be read",
        check="gpumon_kernel_log_down",
        steps=(ScenarioStep(act=Act.LOSE_LOG),),
        within=5 * MINUTE,
    )
    yield _agent(
        name="the configuration file is invalid",
        check="gpumon_reload_failed",
        steps=(ScenarioStep(act=Act.BREAK_CONFIGURATION),),
    )
    yield _agent(
        name="the disk of the store is full",
        check="gpumon_store_down",
        steps=(ScenarioStep(act=Act.FILL_DISK),),
        within=10 * MINUTE,
    )
    yield FaultRow(
        name="unexpected reboot of the node",
        check="node_unexpected_reboot",
        where="node",
        steps=(ScenarioStep(act=Act.REBOOT),),
        within=5 * MINUTE,
    )
