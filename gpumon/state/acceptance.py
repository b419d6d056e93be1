"""Acceptance: the operator accepts GPUs as gone or with fewer PCIe lanes, and ports as down, gone or slower."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gpumon.health.products import Basis
from gpumon.model.bus_id import parse_bus_id
from gpumon.model.request import RequestResult
from gpumon.state import port_inventory
from gpumon.state.messages import Acceptance
from gpumon.state.report import Report

Names = frozenset[str]
"""The names by which an operator may refer to one GPU or port."""


def acceptance(report: Report, parts: Collection[str] = ()) -> Acceptance:
    """Return the message that makes the current GPUs and ports, in their current state, the expected ones.

    If `parts` names GPUs or ports, accept only these as gone, down, slower or with fewer lanes.
    """
    missing, dead, slow = dict(_missing_gpus(report)), dict(_dead_ports(report)), dict(_slow_ports(report))
    narrow = dict(_narrow_gpus(report))
    visible = int(report.node.gpus_visible or 0)
    if not parts:
        speeds = {identity: speed for identity, (speed, _) in slow.items()}
        lanes = {uuid: number for uuid, (number, _) in narrow.items()}
        return Acceptance(count=visible, gone=tuple(missing), ports=tuple(dead), slow=speeds, lanes=lanes)
    wanted = _spellings(parts)
    gone = tuple(uuid for uuid, names in missing.items() if wanted & names)
    down = tuple(identity for identity, names in dead.items() if wanted & names)
    speeds = {identity: speed for identity, (speed, names) in slow.items() if wanted & names}
    count = _count_without(gone, visible + len(missing), report) if gone else None
    lanes = {uuid: number for uuid, (number, names) in narrow.items() if wanted & names}
    return Acceptance(count=count, gone=gone, ports=down, slow=speeds, lanes=lanes)


def refusal(report: Report, parts: Collection[str] = ()) -> RequestResult | None:
    """Return why an acceptance is refused, and the remedy; None if the acceptance is possible.

    An acceptance is refused while the store has not been read or the GPUs cannot be counted, and if a name in `parts`
    is not that of a missing GPU, a GPU with fewer lanes, or a missing, down or slower port.
    """
    if not report.agent.restored:
        return RequestResult(refused="The store has not been read yet.", remedy="Retry in a few seconds.")
    if report.node.gpus_visible is None:
        why = report.notices.get("driver", "they are released, or have not been read yet").rstrip(".")
        return RequestResult(refused=f"The GPUs cannot be counted now: {why}.", remedy="Retry when they are read.")
    absent = [names for _, names in (*_missing_gpus(report), *_dead_ports(report))]
    absent += [names for _, (_, names) in (*_slow_ports(report), *_narrow_gpus(report))]
    acceptable = frozenset[str]().union(*absent)
    unmatched = [part for part in parts if not _spellings([part]) & acceptable]
    if not unmatched:
        return None
    refused = f"{', '.join(unmatched)}: no GPU and no port of that name is missing, down, slower or narrower."
    remedy = f"Name one of these: {', '.join(sorted(acceptable))}." if acceptable else "Nothing is missing."
    return RequestResult(refused=refused, remedy=remedy)


def _count_without(gone: Collection[str], present: int, report: Report) -> int:
    wanted = report.expectation
    return max(present, 0 if wanted.basis is Basis.CONFIGURED else wanted.count) - len(gone)


def _spellings(parts: Collection[str]) -> set[str]:
    return {name for part in parts for name in (part, parse_bus_id(part) or part)}


def _missing_gpus(report: Report) -> Iterator[tuple[str, Names]]:
    """Yield the uuid of each missing GPU, and the names by which an operator may refer to the GPU."""
    for state in report.gpus:
        if state.fault == "missing":
            stored = {state.stored.bus_id} if state.stored else set[str]()
            yield state.uuid, frozenset({state.uuid, state.bus_id, *stored})


def _dead_ports(report: Report) -> Iterator[tuple[str, Names]]:
    for gone in report.gone_ports:
        yield gone.identity, frozenset({gone.identity, f"{gone.port.device}/{gone.port.port}"})
    records = port_inventory.by_name(report.host.inventory)
    for port in report.ports:
        name = f"{port.device}/{port.port}"
        record = records.get(name)
        if port.link.port_up == 0 and record is not None and record.expected:
            yield record.identity, frozenset({record.identity, name})


def _slow_ports(report: Report) -> Iterator[tuple[str, tuple[float, Names]]]:
    """Yield the identity of each port that is up but slower than before, its speed in bytes/s, and its names."""
    records = port_inventory.by_name(report.host.inventory)
    for port in report.ports:
        name, speed = f"{port.device}/{port.port}", port.link.port_speed_bytes_per_second
        record = records.get(name)
        if record is not None and port.link.port_up and speed and speed < (record.speed or 0.0):
            yield record.identity, (speed, frozenset({record.identity, name}))


def _narrow_gpus(report: Report) -> Iterator[tuple[str, tuple[float, Names]]]:
    """Yield the uuid, the number of PCIe lanes and the names of each GPU with an open verdict pcie_width_degraded."""
    for state in report.gpus:
        verdict = report.health.open.get(("pcie_width_degraded", state.uuid))
        lanes = None if verdict is None else verdict.evidence.get("pcie_link_width")
        if isinstance(lanes, float):
            yield state.uuid, (lanes, frozenset({state.uuid, state.bus_id}))
