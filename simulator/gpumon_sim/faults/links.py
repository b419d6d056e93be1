"""NVLinks, the fabric that they make, and what manages it."""

from __future__ import annotations

from collections.abc import Iterator

from gpumon.health.verdict import Action
from gpumon_sim.faults.conditions import has_fabric_manager, has_nvlinks, imex
from gpumon_sim.faults.row import MINUTE, FaultRow, ScenarioStep, flaps

SWITCH_LINK_DOWN = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
"""Logged whenever a link goes down, as with Xid 79 and a GPU reset: leptonai/gpud, sxid/README.md."""


def rows() -> Iterator[FaultRow]:
    down = {"state": "down"}
    yield FaultRow(
        name="one NVLink is down, and the NVSwitch reports it too",
        check="nvlink_down",
        action=Action.RESET,
        steps=(ScenarioStep(gpu={"nvlinks": {3: down}}, log=(SWITCH_LINK_DOWN,)),),
        on=lambda profile: has_nvlinks(profile) and bool(profile.switches),
    )
    yield FaultRow(
        name="fell off the bus, and the NVSwitch reports the links that went down",
        check="gpu_lost",
        action=Action.REBOOT,
        steps=(
            ScenarioStep(
                gpu={"lost": True},
                log=("NVRM: Xid (PCI:{bus}): 79, GPU has fallen off the bus.", *(SWITCH_LINK_DOWN,) * 3),
            ),
        ),
        on=lambda profile: has_nvlinks(profile) and bool(profile.switches),
        hides=True,
    )
    yield FaultRow(
        name="an NVLink is down for a minute, again and again",
        check="nvlink_unstable",
        steps=flaps(10, 2 * MINUTE, gpu={"nvlinks": {3: down}}),
        on=has_nvlinks,
        within=15 * MINUTE,
    )
    yield FaultRow(
        name="the fabric manager in a container has ended",
        check="fabric_manager_down",
        action=Action.RESTART,
        where="node",
        steps=(
            ScenarioStep(node={"services": {"fabric_manager": "container"}}),
            ScenarioStep(at=2 * MINUTE, node={"services": {"fabric_manager": "not_installed"}}),
        ),
        before={"busy": True, "services": {"fabric_manager": "container"}},
        on=has_fabric_manager,
    )
    yield FaultRow(
        name="the fabric manager starts again and again",
        check="fabric_manager_flapping",
        action=Action.FIX,
        where="node",
        steps=flaps(4, 2 * MINUTE, node={"services": {"fabric_manager": "stopped"}}),
        on=has_fabric_manager,
    )
    yield FaultRow(
        name="IMEX crashed: the driver asks for a recovery of its domain",
        check="imex_recovery_requested",
        action=Action.RESTART,
        where="node",
        steps=(
            ScenarioStep(
                node={"imex_crashed": True},
                gpu={"xids": [154]},
                log=(
                    "NVRM: Abrupt nvidia-imex daemon shutdown detected, disabled fabric allocations",
                    "NVRM: Xid (PCI:{bus}): 154, GPU recovery action changed from 0x0 (None) to 0x5 (IMEX Domain)",
                ),
            ),
        ),
        on=imex,
    )
