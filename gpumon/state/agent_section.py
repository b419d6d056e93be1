"""The section `agent`: the metrics of the node and of the agent itself, its store and its notices. Pure."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpumon.model.bus_id import parse_bus_id
from gpumon.model.node import Node
from gpumon.model.snapshot import SANDBOX, Snapshot
from gpumon.model.time_window import NODE, WindowKind, last_to_end
from gpumon.state import gpu_inventory, host_section, port_inventory
from gpumon.state.limit_series import limit_node
from gpumon.state.messages import AgentStatus, StoredState
from gpumon.state.report import PROCESSES, AgentState, Report
from gpumon.state.section import LogLine, Step, reuse_if_equal

EXCLUDE = "gpus_exclude"
_DRIVER_ROWS = ("nvml_up", "gpus_visible", "gpus_on_pci_bus", "snapshot_timestamp_seconds")
"""Metrics of the node that are absent while the whole node is released: their values are then unknown."""


def apply(agent: AgentState, step: Step) -> AgentState:
    """Return the state after a message."""
    match step.message:
        case Snapshot(complete=True):
            agent = replace(agent, node=_count_poll(agent.node, step.message, step))
        case AgentStatus():
            agent = _with_status(agent, step.message)
        case StoredState(agent_runs=runs, lost_to=lost_to):
            agent = replace(agent, runs=(*runs, *agent.runs), restored=True, lost_to=lost_to)
    node = limit_node(_node(agent, step), step.report.inventory.dropped)
    driver = None if node.nvml_up is None else step.report.inventory.down
    derived = {"driver": driver, EXCLUDE: _unmatched_entries(agent, step), **host_section.notices(step.report.host)}
    notices = {subject: text for subject, text in derived.items() if text}
    notices |= {subject: text for subject, text in agent.notices.items() if subject not in derived}
    return replace(agent, node=reuse_if_equal(agent.node, node), notices=reuse_if_equal(agent.notices, notices))


def _unmatched_entries(agent: AgentState, step: Step) -> str | None:
    """Return the notice about entries of `gpus.exclude` without a GPU. One of the inventory may only be lost."""
    inventory = step.report.inventory
    if not inventory.pci.unmatched or not agent.restored:
        return None
    named = {name for gpu in inventory.gpus.values() for name in (gpu.uuid, gpu.bus_id)} | inventory.removed.keys()
    named |= {gpu.bus_id for gpu in inventory.removed.values()}
    entries = ", ".join(entry for entry in inventory.pci.unmatched if (parse_bus_id(entry) or entry) not in named)
    remedy = "Correct or remove these entries of gpus.exclude; `gpumon inventory` lists the GPUs"
    return f"no GPU of this node has this index, PCI address or uuid: {entries}. {remedy}" if entries else None


def _count_poll(node: Node, snapshot: Snapshot, step: Step) -> Node:
    failed = {key.partition(",")[0] for key in snapshot.errors}
    faulty = any(gpu.fault is not None for gpu in step.report.inventory.gpus.values())
    success = {tier: float(tier not in failed and not faulty) for tier in snapshot.durations}
    kernel_log = {name: value for name, value in (node.collector_denied or {}).items() if name == "kernel_log"}
    return replace(
        node,
        gpus_visible=snapshot.visible,
        snapshot_timestamp_seconds=snapshot.wall,
        poll_duration_seconds={**(node.poll_duration_seconds or {}), **snapshot.durations},
        poll_success={**(node.poll_success or {}), **success},
        polls_total=_add_counts(node.polls_total, dict.fromkeys(snapshot.durations, 1.0)),
        poll_errors_total=_add_counts(node.poll_errors_total, snapshot.errors),
        collector_denied=kernel_log | dict.fromkeys(snapshot.denied, 1.0),
    )


def _add_counts(counts: Mapping[str, float] | None, more: Mapping[str, float]) -> dict[str, float]:
    after = dict(counts or {})
    for key, amount in more.items():
        after[key] = after.get(key, 0.0) + amount
    return after


def _with_status(agent: AgentState, status: AgentStatus) -> AgentState:
    denied = {name: value for name, value in (agent.node.collector_denied or {}).items() if name != "kernel_log"}
    node = replace(
        agent.node,
        log_messages_total=dict(status.log_messages),
        store_up=float(status.store_up),
        http_refused_total=dict(status.http_refused),
        notifications_total=dict(status.notifications) or None,
        resident_memory_bytes=dict(status.resident_memory),
        kernel_log_up=None if status.kernel_log_up is None else float(status.kernel_log_up),
        kernel_log_overruns_total=status.kernel_log_overruns,
        collector_denied=denied | ({"kernel_log": 1.0} if status.kernel_log_denied else {}),
    )
    return replace(agent, node=node, notices=status.notices)


# The metrics of the node


def _node(agent: AgentState, step: Step) -> Node:
    report, node = step.report, agent.node
    inventory, host, samplers = report.inventory, report.host, report.inventory.samplers
    bus = None if inventory.bus is None else inventory.bus.functions
    no_gpus = bus is not None and not gpu_inventory.owned_on_bus(bus) and not inventory.expectation.count
    tried = inventory.status is not None or samplers.stuck_seconds or any(samplers.restarts.values())
    left_out = float(host.inventory.left_out * port_inventory.MIN_SERIES_PER_PORT)
    node = replace(
        node,
        simulated=float(report.simulated is not None),
        start_timestamp_seconds=report.started,
        nvml_up=None if no_gpus or not tried else float(inventory.down is None and inventory.fresh),
        nvml_stuck_seconds=samplers.stuck_seconds,
        gpus_expected=None if bus is None else float(inventory.expectation.count),
        gpus_visible=node.gpus_visible if inventory.down is None else None,
        gpus_on_pci_bus=None if inventory.pci.place == SANDBOX else _count_by_driver(bus),
        maintenance_end_timestamp_seconds=_maintenance_end(agent, step),
        sampler_restarts_total=dict(samplers.restarts),
        abandoned_children=float(len(samplers.abandoned) + len(host.child.abandoned)),
        driver_calls_total=samplers.driver_calls,
        nvswitch_errors_total=report.errors.by_nvswitch,
        dropped_series_total={**(node.dropped_series_total or {}), "ports": left_out},
        **host_section.node_rows(host, node.collector_denied),
    )
    return _with_releases(node, step)


def _with_releases(node: Node, step: Step) -> Node:
    """Return the metrics of the node with those adapted to releases.

    The row for the end of a release has the end of the release that ends last, and is kept until the GPUs have been
    read again. If the whole node is released, rows about the driver are None.
    """
    unwatched = step.report.inventory.unwatched
    last = last_to_end(step.report.windows, WindowKind.RELEASE)
    end = node.release_end_timestamp_seconds if last is None else last.deadline.wall
    node = replace(node, release_end_timestamp_seconds=end if unwatched else None)
    return replace(node, **dict.fromkeys(_DRIVER_ROWS)) if NODE in unwatched else node


def _maintenance_end(agent: AgentState, step: Step) -> float | None:
    """Return the wall time at which the maintenance in force ends. If none is in force, return 0 or None.

    None: verdicts from before the start of the agent are not exported yet, or they are lost with a damaged store and no
    operator has cleared the verdict about that. As long as the metric is absent, the alert rules keep the last exported
    verdicts.
    """
    report = replace(step.report, agent=agent)
    if report.maintenance is not None:
        return report.maintenance.deadline.wall
    hidden = not agent.restored or report.hides_verdicts or report.lost_history
    return None if hidden else 0.0


def _count_by_driver(bus: Mapping[str, str] | None) -> dict[str, float] | None:
    if bus is None:
        return None
    counts = Counter(driver or "none" for driver in bus.values())
    return {"nvidia": 0.0, "vfio-pci": 0.0, "none": 0.0} | {driver: float(count) for driver, count in counts.items()}


def changes(before: Report, after: Report) -> Iterator[LogLine]:
    """Yield log lines about entries of `gpus.exclude`, and permissions that the host child lacks, or lacks now."""
    earlier, text = before.notices.get(EXCLUDE), after.notices.get(EXCLUDE)
    if text and text != earlier:
        yield LogLine(logging.WARNING, "entries of gpus.exclude name no GPU", {"detail": text})
    elif earlier and not text:
        yield LogLine(logging.INFO, "every entry of gpus.exclude names a GPU again", {})
    was, now = (report.node.collector_denied or {} for report in (before, after))
    for reader, (message, drop_in) in _DENIED.items():
        if reader in now and reader not in was:
            remedy = f"install the drop-in gpumon.service.d/{drop_in} (docs/install.md)"
            # info, because the packaged systemd unit runs without that permission
            yield LogLine(logging.INFO, message, {"remedy": remedy})


_DENIED = {
    PROCESSES: ("processes of other users cannot be read, so gpu_process_stuck is unknown for them", "processes.conf"),
    "owners": ("the kubelet or a job mapping cannot be read, so GPUs may lack names of their owners", "kubelet.conf"),
}
"""What a permission that a reader lacks means, and the drop-in that grants it, by name of the reader."""
