"""Verdicts in the Report: what the checks are given, and what became of their findings. Pure."""

from __future__ import annotations

from dataclasses import replace

from gpumon.health import judge, pending_verdicts, standing
from gpumon.health.facts import Facts
from gpumon.health.free import free_since
from gpumon.model import hold
from gpumon.model.error_event import UNNAMED, ErrorEvent
from gpumon.model.now import Now
from gpumon.state import gpu_inventory, port_inventory
from gpumon.state.messages import StoredState, VerdictTransitions
from gpumon.state.report import Report
from gpumon.state.settings import ReducerSettings

PATIENCE_SECONDS = 10.0
"""How long the first judgement waits for what the store knew: a hung disk must not silence it."""
NOISE = 0.01
"""Seconds by which two clocks that were read one after the other may differ."""


def looked(report: Report, now: Now, terms: ReducerSettings) -> Report:
    """After one look with every check."""
    if not report.internal.recalled and now.uptime < PATIENCE_SECONDS:
        return report
    found = facts(report, now, terms)
    found = replace(found, probe=replace(found.probe, free_since=free_since(found)))
    return replace(report, probe=found.probe, health=judge.judge(report.health, found))


def facts(report: Report, now: Now, terms: ReducerSettings) -> Facts:
    links = port_inventory.current(report.internal.links, now)
    found = Facts(
        now=now,
        boot_id=report.boot_id,
        node=report.node,
        driver=report.driver,
        gpus=report.gpus,
        stuck=None if links is None else links.stuck,
        contained=None if links is None else links.contained,
        ports=(*report.ports, *(gone.port for gone in report.gone_ports)),
        gone_ports={f"{gone.port.device}/{gone.port.port}": gone.wall for gone in report.gone_ports},
        known_ports=port_inventory.by_name(report.internal.links),
        ports_listed=bool(report.ports) and port_inventory.listed(report.internal.links, now),
        recalled=report.internal.recalled,
        interval=terms.interval,
        catalogue=report.catalogue,
        history=report.internal.history,
        notices=report.notices,
        excluded=report.excluded,
        bus=report.internal.bus,
        policy=terms.policy,
        expectation=report.expectation,
        gone=frozenset(report.internal.gone) | port_inventory.left(report.internal.links),
        versions=_versions(report),
        open=report.health.open,
        broken=report.health.broken,
        probe=report.probe,
        probe_interval=terms.probe_interval,
        probe_gated=terms.probe_gated,
        held=bool(hold.in_force(report.holds)),
        transitions=report.health.history,
        agent_runs=report.agent_runs,
        maintenances=report.maintenances,
    )
    cleared = {key: found.on_this_clock(one.wall, one.at, one.boot_id) for key, one in report.health.cleared.items()}
    return replace(found, events=tuple(_on_this_clock(one, found) for one in report.events), cleared=cleared)


def _on_this_clock(event: ErrorEvent, facts: Facts) -> ErrorEvent:
    """The same error, its times by the wall clock as it is set now."""
    last = facts.on_this_clock(event.last_wall, event.last_at, event.boot_id)
    if abs(last - event.last_wall) < NOISE:
        return event
    first = facts.on_this_clock(event.first_wall, event.first_at, event.boot_id)
    return replace(event, first_wall=first, last_wall=last)


def _versions(report: Report) -> dict[str, str]:
    """NCCL's of the newest run of the probe that used it."""
    found = (one.versions["nccl"] for one in reversed(report.probe.ran) if one.versions.get("nccl"))
    known = {"driver": report.driver.driver, "nccl": next(found, None)}
    return {name: version for name, version in known.items() if version}


def take(report: Report, ruled: VerdictTransitions) -> Report:
    """What was due is so now."""
    return replace(report, health=standing.ruled(report.health, ruled.transitions))


def recall(report: Report, remembered: StoredState, now: Now) -> Report:
    """What the store knew."""
    verdicts = judge.resumed(remembered.verdicts, report.boot_id)
    health = standing.recalled(report.health, verdicts, remembered.transitions, remembered.cleared)
    health = replace(
        health, pending={**pending_verdicts.resumed(remembered.pending, now, report.boot_id), **health.pending}
    )
    return placed(replace(report, health=health, agent_runs=(*remembered.agent_runs, *report.agent_runs)))


def placed(report: Report) -> Report:
    """With the GPUs of verdicts that never told their names: they have their index before anybody has polled them."""
    memory = report.internal
    unnamed = {one.removeprefix(UNNAMED).upper() for _, one in report.health.open if one.startswith(UNNAMED)}
    bus = memory.bus or {}
    known = gpu_inventory.expect(memory.inventory, unnamed - memory.inventory.keys(), bus)
    known = gpu_inventory.release(known, bus, memory.excluded)
    return replace(report, internal=replace(memory, inventory=known))
