"""What the operator accepts as gone, down or slower: the request and the reasons to refuse it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gpumon.health.expectation import Basis
from gpumon.model.bus_id import parse_bus_id
from gpumon.model.request_result import RequestResult
from gpumon.state import port_inventory
from gpumon.state.messages import Acceptance
from gpumon.state.report import Report

Names = frozenset[str]
"""The names by which an operator may refer to one part."""


def acceptance(report: Report, parts: Collection[str] = ()) -> Acceptance:
    """Return the acceptance of everything that is here now, or of the absence or low speed of these parts."""
    missing, dead, slow = dict(_missing(report)), dict(_dead(report)), dict(_slow(report))
    visible = int(report.node.gpus_visible or 0)
    if not parts:
        speeds = {identity: speed for identity, (speed, _) in slow.items()}
        return Acceptance(count=visible, gone=tuple(missing), ports=tuple(dead), slow=speeds)
    wanted = _spellings(parts)
    gone = tuple(uuid for uuid, names in missing.items() if wanted & names)
    down = tuple(identity for identity, names in dead.items() if wanted & names)
    speeds = {identity: speed for identity, (speed, names) in slow.items() if wanted & names}
    count = _count_without(gone, visible + len(missing), report) if gone else None
    return Acceptance(count=count, gone=gone, ports=down, slow=speeds)


def refusal(report: Report, parts: Collection[str] = ()) -> RequestResult | None:
    """Return why an acceptance is not possible now, or which parts are not missing; None if it is possible."""
    if not report.internal.restored:
        return RequestResult(refused="The store has not been read yet.", remedy="Retry in a few seconds.")
    if report.node.gpus_visible is None:
        why = report.notices.get("driver", "they are released, or have not been read yet").rstrip(".")
        return RequestResult(refused=f"The GPUs cannot be counted now: {why}.", remedy="Retry when they are read.")
    absent = [names for _, names in (*_missing(report), *_dead(report))]
    absent += [names for _, (_, names) in _slow(report)]
    acceptable = frozenset[str]().union(*absent)
    strange = [part for part in parts if not _spellings([part]) & acceptable]
    if not strange:
        return None
    refused = f"{', '.join(strange)}: no GPU and no port of that name is missing, down or slower than before."
    remedy = f"Name one of these: {', '.join(sorted(acceptable))}." if acceptable else "Nothing is missing."
    return RequestResult(refused=refused, remedy=remedy)


def _count_without(gone: Collection[str], known: int, report: Report) -> int:
    """Return how many GPUs should be here without these. A configured number cannot be accepted."""
    wanted = report.expectation
    return max(known, 0 if wanted.basis is Basis.CONFIGURED else wanted.count) - len(gone)


def _spellings(parts: Collection[str]) -> set[str]:
    return {name for part in parts for name in (part, parse_bus_id(part) or part)}


def _missing(report: Report) -> Iterator[tuple[str, Names]]:
    """Yield the uuid and the names of each missing GPU."""
    for state in report.gpus:
        if state.fault == "missing":
            stored = {state.stored.bus_id} if state.stored else set[str]()
            yield state.uuid, frozenset({state.uuid, state.bus_id, *stored})


def _dead(report: Report) -> Iterator[tuple[str, Names]]:
    """Yield the identity and the names of each port that is down or gone, except ports that cannot be read now."""
    for gone in report.gone_ports:
        yield gone.identity, frozenset({gone.identity, f"{gone.port.device}/{gone.port.port}"})
    records = port_inventory.by_name(report.internal.ports)
    for port in report.ports:
        name = f"{port.device}/{port.port}"
        record = records.get(name)
        if port.link.port_up == 0 and record is not None and record.expected:
            yield record.identity, frozenset({record.identity, name})


def _slow(report: Report) -> Iterator[tuple[str, tuple[float, Names]]]:
    """Yield the identity, the speed and the names of each port that is slower than before."""
    records = port_inventory.by_name(report.internal.ports)
    for port in report.ports:
        name, speed = f"{port.device}/{port.port}", port.link.port_speed_bytes_per_second
        record = records.get(name)
        if record is not None and port.link.port_up and speed and speed < (record.speed or 0.0):
            yield record.identity, (speed, frozenset({record.identity, name}))
