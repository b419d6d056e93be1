"""State of the host child, and its last snapshot: services and read errors, but not ports. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpumon.model.node import UNITS
from gpumon.model.now import Now
from gpumon.model.reading import SLOW
from gpumon.model.snapshot import HostSnapshot
from gpumon.state.messages import HostStatus

STALE_SECONDS = 3 * SLOW.value
"""Age in seconds above which the last snapshot of the host child is no longer used."""
INFINIBAND, _, PROCESSES, _ = COLLECTORS = ("infiniband", "services", "processes", "schedulers")
"""Names of the collectors of the host child."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """State of the host child, the last snapshot from it, and the number of service stops."""

    child: HostStatus = HostStatus()
    snapshot: HostSnapshot | None = None
    read_at: float = 0.0
    """Time at which the snapshot arrived, as Now.uptime."""
    stops: Mapping[str, float] = field(default_factory=dict)
    """Number of stops and restarts by systemd unit name, since the start of the agent."""


def read(state: HostState, snapshot: HostSnapshot, now: Now) -> HostState:
    """Return the state after a snapshot of the host child."""
    stops = state.stops
    if snapshot.ended:
        stops = {**stops} | {unit: stops.get(unit, 0.0) + 1 for unit in snapshot.ended}
    return replace(state, snapshot=snapshot, read_at=now.uptime, stops=stops)


def current(state: HostState, now: Now) -> HostSnapshot | None:
    """Return the last snapshot; None before the first, or if the last one is older than STALE_SECONDS."""
    return state.snapshot if state.snapshot is not None and now.uptime - state.read_at <= STALE_SECONDS else None


def lists_all_ports(state: HostState) -> bool:
    """Return True if the last snapshot lists every port, so that a port that it does not list is missing."""
    snapshot, child = state.snapshot, state.child
    if snapshot is None or INFINIBAND in snapshot.errors or snapshot.left_out:
        return False
    return not (child.quarantined or child.trouble)


def node_rows(state: HostState, denied: Mapping[str, float] | None, now: Now) -> dict[str, Any]:
    """Return the rows of Node that the host child provides, by name.

    `denied` is the current row `collector_denied`.
    """
    snapshot = current(state, now)
    running = {} if snapshot is None else snapshot.services
    others = {name: value for name, value in (denied or {}).items() if name not in COLLECTORS}
    others |= dict.fromkeys(snapshot.denied if snapshot else (), 1.0)
    return {
        **{row: float(running[unit]) if unit in running else None for row, unit in UNITS.items()},
        "service_stops_total": _service_stops(state),
        "collector_denied": None if denied is None and not others else others,
    }


def _service_stops(state: HostState) -> dict[str, float] | None:
    """Return how often each installed service has stopped, by service name; None if no service is in a snapshot."""
    if state.snapshot is None:
        return None
    names = {unit: row.removesuffix("_up") for row, unit in UNITS.items()}
    return {names[unit]: state.stops.get(unit, 0.0) for unit in {**state.snapshot.services, **state.stops}} or None


def notice(state: HostState, now: Now) -> str | None:
    """Return a notice that lists what the host child cannot read; None if it can read everything."""
    return "; ".join(_problems(state, now)) or None


def _problems(state: HostState, now: Now) -> Iterator[str]:
    for subject, entry in state.child.quarantined.items():
        yield f"{subject} is quarantined: {entry.detail}"
    if state.child.trouble:
        yield state.child.trouble
    snapshot = current(state, now)
    if snapshot is not None:
        yield from (f"{collector}: {error}" for collector, error in snapshot.errors.items())
    elif state.snapshot is not None:
        yield f"no snapshot for more than {STALE_SECONDS:g} s"
