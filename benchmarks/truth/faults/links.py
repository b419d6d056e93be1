"""NVLinks, the fabric that they make, and what manages it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from gpumon_sim.board import Profile
from gpumon_sim.sim_fault import fabric_health, growing, has_fabric_manager, has_nvlinks, imex, nvlink4, nvlink5

from benchmarks.truth.fault import SWITCH_LINK_DOWN, FaultRow, ScenarioStep, flaps, once
from gpumon.health.check_row import MINUTE
from gpumon.health.verdict import Action


def rows() -> Iterator[FaultRow]:
    down = {"state": "down"}
    yield FaultRow(
        name="one NVLink is down",
        check="nvlink_down",
        action=Action.RESET,
        steps=once(nvlinks={3: down}),
        on=has_nvlinks,
    )
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
    yield from (
        _counting(f"an NVLink counts a {counter} now and then", counter, nvlink4) for counter in ("replay", "recovery")
    )
    for rate in (10, 500):
        yield FaultRow(
            name=f"an NVLink counts CRC errors: {rate} a second",
            check="nvlink_crc_high",
            steps=once(nvlinks={3: {"crc": growing(rate)}}),
            on=nvlink4,
            within=10 * MINUTE,
        )
    yield _counting("an NVLink recovers again and again", "recovered", nvlink5)
    for counter in ("symbol", "effective", "receive_remote"):
        words = counter.replace("_", " ")
        yield _counting(f"an NVLink of Blackwell counts {words} errors now and then", counter, nvlink5)
    yield FaultRow(
        name="an NVLink loses too many bits",
        check="nvlink_ber_high",
        steps=once(nvlinks={3: {"effective_ber": 2e-11}}),
        on=nvlink5,
        within=12 * MINUTE,
    )
    yield FaultRow(
        name="an NVLink could not be trained again",
        check="nvlink_recovery_failed",
        action=Action.RESET,
        steps=once(nvlinks={3: {"recovery_failed": 1}}),
        on=nvlink5,
    )
    for name, counter, on in (
        ("an NVLink has errors for 20 minutes", "replay", nvlink4),
        ("an NVLink of Blackwell has symbol errors for 20 minutes", "symbol", nvlink5),
    ):
        yield replace(_counting(name, counter, on), check="nvlink_unstable", within=25 * MINUTE)
    yield FaultRow(
        # marin-community/marin#9086 and #8934: 505 recoveries since the driver was loaded, all other counters 0, and
        # five days later Xid 149.
        name="an NVLink of Blackwell recovers three times in 21 minutes, for hours, without another error",
        check="nvlink_recovering",
        steps=once(nvlinks={3: {"recovered": growing(3 / (21 * MINUTE))}}),
        on=nvlink5,
        within=160 * MINUTE,
    )
    yield FaultRow(
        name="an NVLink is down for a minute, again and again",
        check="nvlink_unstable",
        steps=flaps(10, 2 * MINUTE, gpu={"nvlinks": {3: down}}),
        on=has_nvlinks,
        within=15 * MINUTE,
    )
    yield FaultRow(
        name="an NVLink runs at half its speed",
        check="nvlink_slow",
        action=Action.RESET,
        steps=once(nvlinks={3: {"speed": 12000}}),
        on=has_nvlinks,
        within=10 * MINUTE,
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
    for name, state, action, on in (
        (
            "the fabric runs with less bandwidth",
            {"health": {"degraded_bandwidth": 1}, "summary": 3},
            Action.INSPECT,
            fabric_health,
        ),
        ("the driver reports the fabric as unhealthy without a cause", {"summary": 2}, Action.RESET, fabric_health),
    ):
        yield FaultRow(
            name=name,
            check="fabric_unhealthy",
            action=action,
            steps=once(fabric=state),
            on=on,
            within=12 * MINUTE,
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


def _counting(name: str, counter: str, on: Callable[[Profile], bool]) -> FaultRow:
    """Return the row of an NVLink that counts an error each ten seconds."""
    steps = once(nvlinks={3: {counter: growing(0.1)}})
    return FaultRow(name=name, check="nvlink_errors", steps=steps, on=on, within=10 * MINUTE)
