"""The section `host`: what the host child reads (ports, services, processes, schedulers), and its errors. Pure."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpumon.model.node import UNITS
from gpumon.model.reading import SLOW
from gpumon.model.snapshot import HostSnapshot, HostStatus, PortReading, PortReadings, ProcessReadings, ServiceReadings
from gpumon.state import port_inventory
from gpumon.state.messages import Acceptance, StoredState
from gpumon.state.report import INFINIBAND, PROCESSES, HostState, Report
from gpumon.state.section import LogLine, Step

STALE_SECONDS = 3 * SLOW.value
"""Age in seconds above which the last snapshot of the host child is no longer used."""
FABRIC_MANAGER = UNITS["fabric_manager_up"]
LINKS = "links"
LINK_READERS = frozenset({INFINIBAND, "services", PROCESSES, "schedulers"})
"""Readers that the checks of links need. Their errors are in the notice `links`, those of any other in one of its name.
"""


def apply(host: HostState, step: Step) -> HostState:
    """Return the state after a message."""
    match step.message:
        case HostSnapshot():
            host = _read(host, step.message, step)
        case HostStatus():
            host = replace(host, child=step.message)
        case StoredState(ports=ports):
            host = replace(host, inventory=port_inventory.restore(host.inventory, ports))
        case Acceptance(ports=down, slow=slow):
            host = replace(host, inventory=port_inventory.accept(host.inventory, down, slow))
    is_current = host.snapshot is not None and step.now.uptime - host.read_at <= STALE_SECONDS
    return host if is_current is host.is_current else replace(host, is_current=is_current)


def _read(host: HostState, snapshot: HostSnapshot, step: Step) -> HostState:
    stops = {**host.stops} | {unit: host.stops.get(unit, 0.0) + 1 for unit in snapshot.value(ServiceReadings).ended}
    values = snapshot.values if host.snapshot is None else {**host.snapshot.values, **snapshot.values}
    host = replace(host, snapshot=replace(snapshot, values=values), read_at=step.now.uptime, stops=stops)
    ports = port_inventory.read(
        host.inventory, host.value(PortReadings), step.now, complete=host.lists_all_ports, patterns=step.settings.ports
    )
    outside = host.value(ProcessReadings).fabric_manager and not host.value(ServiceReadings).running.get(FABRIC_MANAGER)
    return replace(host, inventory=ports, fabric_manager_elsewhere=bool(outside) or host.fabric_manager_elsewhere)


def node_rows(host: HostState, denied: Mapping[str, float] | None) -> dict[str, Any]:
    """Return the rows of Node that the host child provides, by name. `denied`: the row `collector_denied`."""
    snapshot = host.current
    running = {} if snapshot is None else _running(host)
    readers = host.snapshot.values if host.snapshot else ()
    others = {name: value for name, value in (denied or {}).items() if name not in readers}
    others |= dict.fromkeys(snapshot.denied if snapshot else (), 1.0)
    names = {unit: row.removesuffix("_up") for row, unit in UNITS.items()}
    units = {**_running(host), **host.stops} if host.snapshot else ()
    stops = {names[unit]: host.stops.get(unit, 0.0) for unit in units}
    return {
        **{row: float(running[unit]) if unit in running else None for row, unit in UNITS.items()},
        "service_stops_total": stops or None,
        "collector_denied": None if denied is None and not others else others,
    }


def _running(host: HostState) -> Mapping[str, bool]:
    """Return whether each unit runs. The fabric manager runs if its unit or another process of it does."""
    running, process = host.value(ServiceReadings).running, host.value(ProcessReadings).fabric_manager
    if process:
        return {**running, FABRIC_MANAGER: True}
    return {FABRIC_MANAGER: False, **running} if host.fabric_manager_elsewhere and process is not None else running


def notices(host: HostState) -> Mapping[str, str | None]:
    """Return what the host child cannot read, by subject: `links`, or a reader that no link needs; None for nothing."""
    others = (host.snapshot.values if host.snapshot else {}).keys() - LINK_READERS
    problems: dict[str, list[str]] = {LINKS: [], **{reader: [] for reader in others}}
    for subject, entry in host.child.quarantined.items():
        problems[subject if subject in others else LINKS].append(f"{subject} is quarantined: {entry.detail}")
    if host.child.trouble:
        problems[LINKS].append(host.child.trouble)
    if host.current is not None:
        for reader, error in host.current.errors.items():
            problems[reader if reader in others else LINKS].append(f"{reader}: {error}")
    elif host.snapshot is not None:
        problems[LINKS].append(f"no snapshot for more than {STALE_SECONDS:g} s")
    return {subject: "; ".join(texts) or None for subject, texts in problems.items()}


def changes(before: Report, after: Report) -> Iterator[LogLine]:
    """Yield the log lines for what can no longer, or again, be read, and for ports that changed their state."""
    was, now = notices(before.host), notices(after.host)
    for subject, text in now.items():
        what = "links" if subject == LINKS else f"data of the reader {subject}"
        if text and not was.get(subject):
            yield LogLine(logging.WARNING, f"not all {what} can be read", {"detail": text})
        elif was.get(subject) and not text:
            yield LogLine(logging.INFO, f"all {what} can be read again", {})
    old, new = before.host.inventory, after.host.inventory
    if old is not new:
        yield from _ports(old.ports, new.ports)
        for name, port in new.records.items():
            if port.expected is False and name in old.records and old.records[name].expected:
                words = {"device": port.device, "port": port.port, "pci_bus_id": port.bus_id, "guid": port.guid}
                message = "the port is no longer expected: it was replaced, excluded, or accepted as down or gone"
                yield LogLine(logging.WARNING, message, words)


def _ports(before: Sequence[PortReading], after: Sequence[PortReading]) -> Iterator[LogLine]:
    previous, now = ({(port.device, port.port): port for port in ports} for ports in (before, after))
    for (device, number), port in now.items():
        was = previous.get((device, number))
        if was is not None and was is not port:
            yield from _port(was, port, {"device": device, "port": number})
    for device, number in previous.keys() - now.keys():
        yield LogLine(logging.WARNING, "the port is gone", {"device": device, "port": number})


def _port(before: PortReading, after: PortReading, words: dict[str, object]) -> Iterator[LogLine]:
    was, up = before.link.port_up, after.link.port_up
    flaps = (after.counts.link_downs_total or 0.0) - (before.counts.link_downs_total or 0.0)
    if was == 1 and up == 0:
        yield LogLine(logging.WARNING, "the port is down", words)
    elif was == 0 and up == 1:
        yield LogLine(logging.INFO, "the port is up again", words)
    elif was == up == 1 and flaps > 0 and before.counts.link_downs_total is not None:
        yield LogLine(logging.WARNING, "the port was down for a short time", words | {"times": int(flaps)})
