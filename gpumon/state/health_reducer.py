"""Verdicts in the Report: assembles the facts that checks read, and applies transitions of verdicts. Pure."""

from __future__ import annotations

from dataclasses import replace

from gpumon.health import evaluation, node_health, pending_verdicts
from gpumon.health.facts import Facts
from gpumon.health.free_node import free_since
from gpumon.model.error_event import UNNAMED, ErrorEvent
from gpumon.model.now import Now
from gpumon.model.time_window import WindowKind, in_force, of_kind
from gpumon.state import gpu_inventory, host_status, port_inventory
from gpumon.state.messages import StoredState, VerdictTransitions
from gpumon.state.reducer_settings import ReducerSettings
from gpumon.state.report import Report

MAX_STORE_WAIT_SECONDS = 10.0
"""Maximum seconds that the first evaluation waits for the store, because a hung disk must not prevent it."""
CLOCK_NOISE = 0.01
"""Difference in seconds up to which two wall times count as equal, because two clocks are read one after the other."""


def evaluate(report: Report, now: Now, settings: ReducerSettings) -> Report:
    """Return the Report after an evaluation of all checks.

    Until the store has been read, but at most MAX_STORE_WAIT_SECONDS after the start, return the Report unchanged.
    """
    if not report.internal.restored and now.uptime < MAX_STORE_WAIT_SECONDS:
        return report
    facts_now = facts(report, now, settings)
    facts_now = replace(facts_now, probe=replace(facts_now.probe, free_since=free_since(facts_now)))
    return replace(report, probe=facts_now.probe, health=evaluation.evaluate(report.health, facts_now))


def facts(report: Report, now: Now, settings: ReducerSettings) -> Facts:
    """Return the facts that checks may read at this time."""
    internal, bus = report.internal, report.internal.inventory.bus
    links = host_status.current(internal.host, now)
    read = Facts(
        now=now,
        boot_id=report.boot_id,
        node=report.node,
        gpus=report.gpus,
        stuck=None if links is None else links.stuck,
        contained=None if links is None else links.contained,
        ports=(*report.ports, *(gone.port for gone in report.gone_ports)),
        gone_ports={f"{gone.port.device}/{gone.port.port}": gone.wall for gone in report.gone_ports},
        known_ports=port_inventory.by_name(internal.ports),
        ports_listed=bool(report.ports) and links is not None and host_status.lists_all_ports(internal.host),
        recalled=internal.restored,
        lost_to=internal.lost_to,
        started=report.started,
        interval=settings.interval,
        catalogue=report.catalogue,
        history=internal.history,
        notices=report.notices,
        excluded=report.excluded,
        bus=None if bus is None else bus.functions,
        nvswitches=internal.inventory.pci.nvswitches,
        policy=settings.policy,
        expectation=report.expectation,
        gone=frozenset(internal.inventory.removed) | port_inventory.removed_ports(internal.ports),
        versions=_versions(report),
        open=report.health.open,
        failing_checks=report.health.failing_checks,
        probe=report.probe,
        probe_interval=settings.probe_interval,
        probe_gated=settings.probe_gated,
        held=bool(in_force(report.windows, WindowKind.HOLD)),
        transitions=report.health.history,
        agent_runs=report.agent_runs,
        maintenances=of_kind(report.windows, WindowKind.MAINTENANCE),
        releases=of_kind(report.windows, WindowKind.RELEASE),
    )
    cleared = {
        key: read.on_this_clock(clearing.wall, clearing.at, clearing.boot_id)
        for key, clearing in report.health.cleared.items()
    }
    return replace(read, events=tuple(_on_this_clock(event, read) for event in report.events), cleared=cleared)


def _on_this_clock(event: ErrorEvent, facts: Facts) -> ErrorEvent:
    """Return the event with its wall times converted to the current setting of the wall clock."""
    last = facts.on_this_clock(event.last_wall, event.last_at, event.boot_id)
    if abs(last - event.last_wall) < CLOCK_NOISE:
        return event
    first = facts.on_this_clock(event.first_wall, event.first_at, event.boot_id)
    return replace(event, first_wall=first, last_wall=last)


def _versions(report: Report) -> dict[str, str]:
    """Return the versions of the driver, and of NCCL in the last probe run with NCCL. Leave out unknown versions."""
    nccl = (run.versions["nccl"] for run in reversed(report.probe.ran) if run.versions.get("nccl"))
    versions = {"driver": report.driver.driver, "nccl": next(nccl, None)}
    return {name: version for name, version in versions.items() if version}


def take(report: Report, message: VerdictTransitions) -> Report:
    """Return the Report after these transitions of verdicts."""
    return replace(report, health=node_health.apply_transitions(report.health, message.transitions))


def restore(report: Report, stored: StoredState, now: Now) -> Report:
    """Return the Report with the stored verdicts, their transitions, pending verdicts and agent runs.

    A GPU on the PCI bus that only a verdict names is added to the inventory.
    """
    verdicts = evaluation.restored_verdicts(stored.verdicts, report.boot_id)
    health = node_health.restore_health(report.health, verdicts, stored.transitions, stored.cleared)
    health = replace(
        health, pending={**pending_verdicts.restore_pending(stored.pending, now, report.boot_id), **health.pending}
    )
    return expect_unnamed(replace(report, health=health, agent_runs=(*stored.agent_runs, *report.agent_runs)))


def expect_unnamed(report: Report) -> Report:
    """Return the Report after adding to the inventory each GPU that an open verdict names by PCI address.

    Thus these GPUs have an index before the first poll.
    """
    unnamed = {name.removeprefix(UNNAMED).upper() for _, name in report.health.open if name.startswith(UNNAMED)}
    inventory = gpu_inventory.expect_unnamed(report.internal.inventory, unnamed)
    return replace(report, internal=replace(report.internal, inventory=inventory))
