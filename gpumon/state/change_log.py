"""Log lines about changes of the node: each failure and recovery is logged once. Pure."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpumon.health.alert import FIRING, Alert
from gpumon.health.alert_rules import PAGING, SEVERITIES
from gpumon.health.verdict import Key, Level, VerdictChange
from gpumon.model.durations import utc
from gpumon.model.error_event import SXID, XID
from gpumon.model.gpu_state import GpuState
from gpumon.model.snapshot import SANDBOX, PortReading
from gpumon.model.time_window import TimeWindow, WindowKind, in_force
from gpumon.state.gpu_inventory import Removal
from gpumon.state.gpu_section import NOT_READ
from gpumon.state.host_section import PROCESSES
from gpumon.state.port_inventory import Records
from gpumon.state.report import Report


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line to log: level, message and fields, before it is passed to `logging`."""

    level: int
    message: str
    fields: Mapping[str, object]


_LEVELS = dict(zip(SEVERITIES, (logging.ERROR, logging.WARNING, logging.INFO), strict=True))


def changes(before: Report, after: Report) -> Iterator[LogLine]:
    """Yield the log lines for what changed on the node from the Report `before` to the Report `after`."""
    if before.inventory.status != after.inventory.status:
        yield from _driver(after)
    if after.inventory.pci.place == SANDBOX != before.inventory.pci.place:
        yield LogLine(logging.WARNING, "sysfs shows no NVIDIA GPU; monitoring those that the driver lists", {})
    if before.gpus is not after.gpus:
        previous = {state.bus_id: state for state in before.gpus}
        for state in after.gpus:
            yield from _gpu(previous.get(state.bus_id), state)
            yield from _nvlinks(previous.get(state.bus_id), state)
    if before.inventory.removed is not after.inventory.removed and before.agent.restored is after.agent.restored:
        yield from _gone_gpus(before, after)
    if before.host.inventory is not after.host.inventory:
        yield from _ports(before.host.inventory.ports, after.host.inventory.ports)
        yield from _removed_ports(before.host.inventory.records, after.host.inventory.records)
    yield from _links_notice(before.notices.get("links"), after.notices.get("links"))
    yield from _denied_processes(before, after)
    if before.events is not after.events and before.agent.restored is after.agent.restored:
        yield from _errors(before, after)
    if before.health.history is not after.health.history and before.agent.restored is after.agent.restored:
        yield from _transitions(before, after)
    yield from _broken_checks(before, after)
    yield from _windows(before, after)
    if before.health is not after.health or before.windows is not after.windows:
        yield from _alerts(before, after)


_INHIBITED = {
    WindowKind.RELEASE: "the agent closes the driver",
    WindowKind.HOLD: "no probe runs",
    WindowKind.MAINTENANCE: "no alert pages",
}


def _windows(before: Report, after: Report) -> Iterator[LogLine]:
    """Yield a line for each time window that started, was replaced, ended, or continues after an agent restart."""
    if before.windows is after.windows:
        return
    old, new = ({window.slot: window for window in in_force(report.windows)} for report in (before, after))
    verb = "started" if before.agent.restored is after.agent.restored else "continues"
    for slot, window in new.items():
        if slot not in old:
            message = f"{window.kind} {verb}: {_INHIBITED[window.kind]}"
            yield LogLine(logging.INFO, message, _window(window, after))
        elif old[slot].id != window.id:
            yield LogLine(logging.INFO, f"{window.kind} replaced", _window(window, after))
    ended = {window.id: window for window in after.windows if window.ended is not None}
    for slot, window in old.items():
        if slot not in new and window.id in ended:
            words = _window(window, after) | {"ended_by": ended[window.id].ended_by}
            yield LogLine(logging.INFO, f"{window.kind} ended", words)


def _window(window: TimeWindow, report: Report) -> dict[str, object]:
    words = {"owner": window.owner, "by": window.by, "reason": window.reason, "until": _moment(window.deadline.wall)}
    if window.kind is WindowKind.RELEASE:
        gpu = report.gpu(window.bus_id) if window.bus_id else None
        words["gpu"] = window.bus_id or "all" if gpu is None else f"{gpu.index} ({gpu.uuid})"
    return {name: word for name, word in words.items() if word}


def _moment(wall: float) -> str:
    return utc(wall).isoformat(timespec="seconds")


def _driver(report: Report) -> Iterator[LogLine]:
    status = report.inventory.status
    if status is not None and status.up:
        yield LogLine(logging.INFO, "the driver answers", {"driver": status.driver, "nvml": status.nvml})
    elif status is not None:
        level = logging.INFO if report.node.nvml_up is None else logging.ERROR
        yield LogLine(level, "the driver cannot be read", {"error": status.error, "remedy": status.remedy})


def _gpu(before: GpuState | None, after: GpuState) -> Iterator[LogLine]:
    if _fault(before) == _fault(after):
        return
    words = {"gpu": after.index, "uuid": after.uuid, "pci_bus_id": after.bus_id}
    if after.fault is None:
        yield LogLine(logging.WARNING, "the GPU answers again", words)
    else:
        yield LogLine(logging.ERROR, "the GPU does not answer", words | {"fault": after.fault, "detail": after.detail})


def _fault(state: GpuState | None) -> str | None:
    """Return the fault of a GPU; None if it has no fault or is not in the Report.

    Also return None for a GPU that has not been read yet, which is normal at every start of the agent.
    """
    return None if state is None or state.detail == NOT_READ else state.fault


_REMOVED = {
    Removal.GIVEN: "the GPU has another driver now and is no longer expected",
    Removal.EXCLUDED: "the GPU is excluded by the configuration and is no longer expected",
    Removal.REPLACED: "the GPU was replaced by another one and is no longer expected",
    Removal.ACCEPTED: "the GPU is gone, as the operator accepted, and is no longer expected",
}


def _gone_gpus(before: Report, after: Report) -> Iterator[LogLine]:
    """Yield a line for each GPU that stopped being expected, or for which the reason for that changed."""
    for uuid, gone in after.inventory.removed.items():
        if before.inventory.removed.get(uuid) != gone:
            yield LogLine(logging.WARNING, _REMOVED[gone.why], {"uuid": uuid, "pci_bus_id": gone.bus_id})


def _nvlinks(before: GpuState | None, after: GpuState) -> Iterator[LogLine]:
    if before is None or before.links is after.links:
        return
    words: dict[str, object] = {"gpu": after.index, "uuid": after.uuid}
    changed: dict[float, list[str]] = {0.0: [], 1.0: []}
    for link, link_state in after.links.items():
        was = before.links.get(link)
        if was is not None and None not in (was.up, link_state.up) and was.up != link_state.up:
            changed[float(bool(link_state.up))].append(link)
    if changed[0.0]:
        yield LogLine(logging.WARNING, "NVLinks are down", words | {"links": ",".join(changed[0.0])})
    if changed[1.0]:
        yield LogLine(logging.INFO, "NVLinks are up again", words | {"links": ",".join(changed[1.0])})


def _ports(before: Sequence[PortReading], after: Sequence[PortReading]) -> Iterator[LogLine]:
    previous, now = ({(port.device, port.port): port for port in ports} for ports in (before, after))
    for (device, number), port in now.items():
        was = previous.get((device, number))
        if was is not None and was is not port:
            yield from _port(was, port, {"device": device, "port": number})
    for device, number in previous.keys() - now.keys():
        yield LogLine(logging.WARNING, "the port is gone", {"device": device, "port": number})


def _removed_ports(before: Records, after: Records) -> Iterator[LogLine]:
    """Yield a line for each port that was expected in `before` and is no longer expected."""
    for name, port in after.items():
        if port.expected is False and name in before and before[name].expected:
            words = {"device": port.device, "port": port.port, "pci_bus_id": port.bus_id, "guid": port.guid}
            message = "the port is no longer expected: it was replaced, excluded, or accepted as down or gone"
            yield LogLine(logging.WARNING, message, words)


def _port(before: PortReading, after: PortReading, words: dict[str, object]) -> Iterator[LogLine]:
    was, up = before.link.port_up, after.link.port_up
    flaps = (after.counts.link_downs_total or 0.0) - (before.counts.link_downs_total or 0.0)
    if was == 1 and up == 0:
        yield LogLine(logging.WARNING, "the port is down", words)
    elif was == 0 and up == 1:
        yield LogLine(logging.INFO, "the port is up again", words)
    elif was == up == 1 and flaps > 0 and before.counts.link_downs_total is not None:
        yield LogLine(logging.WARNING, "the port was down for a short time", words | {"times": int(flaps)})


def _links_notice(before: str | None, after: str | None) -> Iterator[LogLine]:
    if after and not before:
        yield LogLine(logging.WARNING, "not all links can be read", {"detail": after})
    elif before and not after:
        yield LogLine(logging.INFO, "all links can be read again", {})


def _denied_processes(before: Report, after: Report) -> Iterator[LogLine]:
    """Yield a line if the host child is denied to read the processes of other users, and was not denied it before.

    The level is info, because the packaged systemd unit runs without that permission.
    """
    was, now = (PROCESSES in (report.node.collector_denied or {}) for report in (before, after))
    if now and not was:
        message = "processes of other users cannot be read, so gpu_process_stuck is unknown for them"
        remedy = "install the drop-in gpumon.service.d/processes.conf (docs/install.md)"
        yield LogLine(logging.INFO, message, {"remedy": remedy})


def _errors(before: Report, after: Report) -> Iterator[LogLine]:
    """Yield a line for each new error event, unless it is from before the first start of the agent on this host."""
    previous = {event.id for event in before.events}
    for event in after.events:
        if event.id not in previous and not event.historical:
            means = after.catalogue.explain(event)
            number = {XID: f"Xid {event.code}: ", SXID: f"SXid {event.code}: "}.get(event.kind, "")
            words = {"uuid": event.uuid, "pci_bus_id": event.bus_id, "action": means.action, "text": event.text}
            fields = {name: word for name, word in words.items() if word}
            yield LogLine(_LEVELS[means.severity], f"{number}{means.name}", fields)


_VERDICT_LEVELS = {Level.FAIL: logging.ERROR, Level.WARN: logging.WARNING}


def _transitions(before: Report, after: Report) -> Iterator[LogLine]:
    """Yield a line for each new transition of a verdict."""
    logged = set(map(id, before.health.history))
    for transition in after.health.history:
        if id(transition) not in logged:
            verdict = transition.verdict
            words = _device_words(verdict.key, after) | {"action": verdict.action.value}
            if transition.change is VerdictChange.CLEARED:
                words |= {"cleared_by": transition.cleared_by or ""} | (
                    {"note": transition.note} if transition.note else {}
                )
                yield LogLine(logging.INFO, f"verdict cleared: {_prefix(words)}{verdict.reason}", words)
            else:
                level = _VERDICT_LEVELS.get(verdict.level, logging.INFO)
                yield LogLine(level, f"verdict {verdict.level.word}: {_prefix(words)}{verdict.reason}", words)


def _prefix(words: Mapping[str, object]) -> str:
    """Return the name of the device in these log fields, followed by a colon; an empty string for the node."""
    device = f"GPU {words['gpu']}" if "gpu" in words else words.get("device")
    return f"{device}: " if device else ""


def _broken_checks(before: Report, after: Report) -> Iterator[LogLine]:
    """Yield a line for each check that began to raise an exception on a device, and for each that works again."""
    failed, failing = before.health.failing_checks, after.health.failing_checks
    for key in failing.keys() - failed.keys():
        words = _device_words(key, after) | {"error": failing[key]}
        yield LogLine(logging.ERROR, "a check raised an exception, its verdicts stay: report this bug", words)
    for key in failed.keys() - failing.keys():
        yield LogLine(logging.INFO, "the check works again", _device_words(key, after))


def _device_words(key: Key, report: Report) -> dict[str, object]:
    """Return the log fields that name a check and the device of its verdict, with the index if that is a GPU."""
    check, device = key
    words: dict[str, object] = {"check": check}
    if gpu := next((state for state in report.gpus if state.uuid == device), None):
        words["gpu"] = gpu.index
    return words | ({"device": device} if device else {})


def _alerts(before: Report, after: Report) -> Iterator[LogLine]:
    """Yield a line for each alert that began to fire, and for each that ended."""
    fired, firing = (
        {each.identity: each for each in report.alerts if each.state == FIRING} for report in (before, after)
    )
    for identity, alert in firing.items():
        if identity not in fired:
            yield LogLine(_LEVELS[alert.severity], f"alert firing: {alert.summary}", _words(alert))
    for identity, alert in fired.items():
        if identity not in firing:
            yield LogLine(logging.INFO, f"alert {_end(alert, after)}: {alert.summary}", _words(alert))


def _end(alert: Alert, report: Report) -> str:
    """Return how an alert ended, as text: inhibited by another verdict or by a maintenance, else resolved."""
    verdict = report.health.open.get(alert.key)
    if verdict is not None and verdict.inhibited_by is not None:
        return f"inhibited by {verdict.inhibited_by[0]}"
    in_maintenance = report.maintenance is not None and alert.severity in PAGING
    return "inhibited by maintenance" if verdict is not None and in_maintenance else "resolved"


def _words(alert: Alert) -> Mapping[str, object]:
    return {"rule": alert.rule, "severity": alert.severity, **{f"label_{name}": value for name, value in alert.labels}}
