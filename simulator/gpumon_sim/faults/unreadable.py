"""Rows for GPUs and drivers that cannot be read or are absent."""

from __future__ import annotations

from collections.abc import Iterator

from gpumon.health.verdict import Action
from gpumon_sim.faults.conditions import MANY
from gpumon_sim.faults.row import MINUTE, Act, FaultRow, ScenarioStep, after_restart, of_gpu, of_node, xid


def rows() -> Iterator[FaultRow]:
    lost = "GPU has fallen off the bus."
    yield FaultRow(
        name="fell off the bus: Xid 79, and lost to NVML",
        check="gpu_lost",
        action=Action.REBOOT,
        steps=xid(79, lost, lost=True),
        hides=True,
    )
    yield FaultRow(
        name="fell off the bus: kernel message without an Xid",
        check="gpu_lost",
        action=Action.REBOOT,
        steps=(ScenarioStep(gpu={"lost": True}, log=("NVRM: GPU {bus}.0: GPU has fallen off the bus.",)),),
        hides=True,
    )
    yield FaultRow(
        name="gone after a reboot",
        check="gpu_missing",
        action=Action.INSPECT,
        steps=(ScenarioStep(gpu={"absent": True}, act=Act.REBOOT),),
        within=6 * MINUTE,
        miss="if the only GPU is gone, the driver does not start: `gpu_driver_down` reports it instead.",
    )
    alone = "if the only GPU is gone, the driver does not start: `gpu_driver_down` reports it instead."
    for now, check, step, miss in (
        ("missing", "gpu_missing", {"absent": True}, alone),
        ("cannot be opened", "gpu_init_failed", {"lookup": "IRQ_ISSUE"}, ""),
    ):
        yield FaultRow(
            name=f"lost, rebooted, and {now}",
            check=check,
            action=Action.INSPECT,
            steps=(*xid(79, lost, lost=True), ScenarioStep(at=MINUTE, gpu=step, act=Act.PLANNED_REBOOT)),
            within=9 * MINUTE,
            hides=True,
            miss=miss,
        )
    yield FaultRow(
        name="opening it does not return",
        check="gpu_stuck",
        action=Action.REBOOT,
        steps=after_restart(gpu={"hang": ["nvmlDeviceGetHandleByPciBusId*"]}),
        within=2 * MINUTE,
    )
    yield FaultRow(
        name="every driver call is slow",
        check="gpumon_poll_slow",
        action=Action.FIX,
        where="node",
        steps=of_node(delay={"nvmlDeviceGet*": 0.02}),
        settings={"poll": {"interval_seconds": 1.0}},
        on=lambda profile: len(profile.bus_ids) >= MANY,
    )
    yield FaultRow(
        name="driver calls on one GPU are slow",
        check="gpumon_poll_slow",
        action=Action.FIX,
        where="node",
        steps=of_gpu(delay={"nvmlDeviceGet*": 0.15}),
        settings={"poll": {"interval_seconds": 1.0}},
        miss="a GPU that answers slowly is read in turns, so no poll is slow; its readings are older but correct.",
    )
    yield FaultRow(
        name="initialising the driver does not return",
        check="gpu_driver_down",
        where="node",
        action=Action.REBOOT,
        steps=after_restart(node={"hang": ["nvmlInit*"]}),
        within=3 * MINUTE,
    )
