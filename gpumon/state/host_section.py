"""The section `host`: what the host child reads (ports, services, processes, schedulers), and its errors. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from gpumon.model.frame import Frame
from gpumon.model.node import UNITS
from gpumon.model.reading import SLOW
from gpumon.model.snapshot import HostSnapshot, PortReadings, ProcessReadings, ServiceReadings
from gpumon.state import port_inventory
from gpumon.state.messages import Acceptance, HostStatus, StoredState
from gpumon.state.port_inventory import PortInventory
from gpumon.state.section import Step

STALE_SECONDS = 3 * SLOW.value
"""Age in seconds above which the last snapshot of the host child is no longer used."""
INFINIBAND, PROCESSES = "infiniband", "processes"
"""Names of readers of the host child."""
FABRIC_MANAGER = UNITS["fabric_manager_up"]

ValueT = TypeVar("ValueT", bound=Frame)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """State of the host child, the last snapshot from it, the ports, and the number of service stops."""

    child: HostStatus = HostStatus()
    snapshot: HostSnapshot | None = None
    """The last snapshot, with the last value of each reader."""
    read_at: float = 0.0
    """Time at which the snapshot arrived, as Now.uptime."""
    is_current: bool = False
    """True if there is a snapshot that is not older than STALE_SECONDS."""
    stops: Mapping[str, float] = field(default_factory=dict)
    """Number of stops and restarts by systemd unit name, since the start of the agent."""
    fabric_manager_elsewhere: bool = False
    """True if the fabric manager has run outside its unit, as in a container of the GPU operator."""
    inventory: PortInventory = PortInventory()

    def value(self, kind: type[ValueT]) -> ValueT:
        """Return the last value of this type; one without attributes, which is "unknown", if there is none."""
        return kind() if self.snapshot is None else self.snapshot.value(kind)

    @property
    def current(self) -> HostSnapshot | None:
        """Return the last snapshot; None if `is_current` is False."""
        return self.snapshot if self.is_current else None

    @property
    def lists_all_ports(self) -> bool:
        """Return True if the last snapshot lists every port, so that a port that it does not list is missing."""
        snapshot, child = self.snapshot, self.child
        if snapshot is None or INFINIBAND in snapshot.errors or snapshot.value(PortReadings).left_out:
            return False
        return not (child.quarantined or child.trouble)


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
    """Return the rows of Node that the host child provides, by name.

    `denied` is the current row `collector_denied`.
    """
    snapshot = host.current
    running = {} if snapshot is None else _running(host)
    readers = host.snapshot.values if host.snapshot else ()
    others = {name: value for name, value in (denied or {}).items() if name not in readers}
    others |= dict.fromkeys(snapshot.denied if snapshot else (), 1.0)
    return {
        **{row: float(running[unit]) if unit in running else None for row, unit in UNITS.items()},
        "service_stops_total": _service_stops(host),
        "collector_denied": None if denied is None and not others else others,
    }


def _running(host: HostState) -> Mapping[str, bool]:
    """Return whether each unit runs. The fabric manager runs if its unit or another process of it does."""
    running, process = host.value(ServiceReadings).running, host.value(ProcessReadings).fabric_manager
    if process:
        return {**running, FABRIC_MANAGER: True}
    return {FABRIC_MANAGER: False, **running} if host.fabric_manager_elsewhere and process is not None else running


def _service_stops(host: HostState) -> dict[str, float] | None:
    """Return how often each installed service has stopped, by service name; None if no service is in a snapshot."""
    if host.snapshot is None:
        return None
    names = {unit: row.removesuffix("_up") for row, unit in UNITS.items()}
    return {names[unit]: host.stops.get(unit, 0.0) for unit in {**_running(host), **host.stops}} or None


def notice(host: HostState) -> str | None:
    """Return a notice that lists what the host child cannot read; None if it can read everything."""
    return "; ".join(_problems(host)) or None


def _problems(host: HostState) -> Iterator[str]:
    for subject, entry in host.child.quarantined.items():
        yield f"{subject} is quarantined: {entry.detail}"
    if host.child.trouble:
        yield host.child.trouble
    snapshot = host.current
    if snapshot is not None:
        yield from (f"{collector}: {error}" for collector, error in snapshot.errors.items())
    elif host.snapshot is not None:
        yield f"no snapshot for more than {STALE_SECONDS:g} s"
