"""Lets the operator accept the inventory: what is missing, down, slower or narrower is then no longer a fault."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from typing import NamedTuple

from gpumon.health.products import Basis
from gpumon.model.bus_id import parse_bus_id
from gpumon.model.request import RequestResult
from gpumon.services.write_behind import WriteBehind
from gpumon.state import port_inventory
from gpumon.state.messages import Acceptance
from gpumon.state.report import Report
from gpumon.store.store_error import StoreError
from gpumon.supervisor.loop import Loop

log = logging.getLogger("gpumon")


def accept_inventory(
    loop: Loop, writes: WriteBehind, latest: Callable[[], Report], parts: Collection[str] = ()
) -> Future[RequestResult]:
    """Accept that GPUs or ports are missing, down, slower or have fewer PCIe lanes. Any thread may call this.

    `parts`: GPUs (uuid or PCI address) and ports (such as mlx5_3/1) to accept; empty for all. Return a future. Its
    result is set when the acceptance is stored and in effect, or when it is refused or cannot be stored.
    """

    def accept(answer: Future[RequestResult]) -> None:
        report = latest()
        refused = refusal(report, parts)
        if refused is not None:
            answer.set_result(refused)
            return
        accepted = acceptance(report, parts)

        def settle(error: StoreError | None) -> None:
            if error is not None:
                problem = f"It cannot be stored: {error.problem}."
                answer.set_result(RequestResult(refused=problem, remedy=f"{error.remedy}."))
                return
            fields = {
                "gpus": accepted.count,
                "gone": ",".join(accepted.gone),
                "narrower": ",".join(accepted.lanes),
                "ports": ",".join((*accepted.ports, *accepted.slow)),
            }
            log.info(
                "inventory accepted: what is gone is no longer expected",
                extra={name: value for name, value in fields.items() if value},
            )
            answer.set_result(RequestResult())

        writes.record(accepted, settle, required=True)

    return loop.request(accept)


def acceptance(report: Report, parts: Collection[str] = ()) -> Acceptance:
    """Return the message that makes the current GPUs and ports, in their current state, the expected ones.

    If `parts` names GPUs or ports, accept only these as gone, down, slower or with fewer lanes.
    """
    wanted = _spellings(parts)
    losses = list(_losses(report))
    accepted: dict[str, dict[str, float]] = {"gone": {}, "ports": {}, "slow": {}, "lanes": {}}
    for loss in losses:
        if not parts or wanted & loss.names:
            accepted[loss.field][loss.identity] = loss.value
    count: int | None = int(report.node.gpus_visible or 0)
    if parts and accepted["gone"]:
        present = int(report.node.gpus_visible or 0) + sum(loss.field == "gone" for loss in losses)
        expected = 0 if report.expectation.basis is Basis.CONFIGURED else report.expectation.count
        count = max(present, expected) - len(accepted["gone"])
    elif parts:
        count = None
    return Acceptance(
        count=count,
        gone=tuple(accepted["gone"]),
        ports=tuple(accepted["ports"]),
        slow=accepted["slow"],
        lanes=accepted["lanes"],
    )


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
    acceptable = frozenset[str]().union(*(loss.names for loss in _losses(report)))
    unmatched = [part for part in parts if not _spellings([part]) & acceptable]
    if not unmatched:
        return None
    refused = f"{', '.join(unmatched)}: no GPU and no port of that name is missing, down, slower or narrower."
    remedy = f"Name one of these: {', '.join(sorted(acceptable))}." if acceptable else "Nothing is missing."
    return RequestResult(refused=refused, remedy=remedy)


def _spellings(parts: Collection[str]) -> set[str]:
    return {name for part in parts for name in (part, parse_bus_id(part) or part)}


class _Loss(NamedTuple):
    """A GPU or port that an operator may accept in its current state."""

    field: str
    """Field of Acceptance to which it belongs."""
    identity: str
    names: frozenset[str]
    value: float = 0.0
    """The current speed in bytes/s, or number of PCIe lanes."""


def _losses(report: Report) -> Iterator[_Loss]:
    for state in report.gpus:
        names = frozenset({state.uuid, state.bus_id})
        verdict = report.health.open.get(("pcie_width_degraded", state.uuid))
        lanes = None if verdict is None else verdict.evidence.get("pcie_link_width")
        if state.fault == "missing":
            yield _Loss("gone", state.uuid, names | ({state.stored.bus_id} if state.stored else set()))
        if isinstance(lanes, float):
            yield _Loss("lanes", state.uuid, names, lanes)
    for gone in report.gone_ports:
        yield _Loss("ports", gone.identity, frozenset({gone.identity, f"{gone.port.device}/{gone.port.port}"}))
    records_by_name = port_inventory.by_name(report.host.inventory)
    for port in report.ports:
        name, speed = f"{port.device}/{port.port}", port.link.port_speed_bytes_per_second
        record = records_by_name.get(name)
        if record is not None:
            names = frozenset({record.identity, name})
            if port.link.port_up == 0 and record.expected:
                yield _Loss("ports", record.identity, names)
            if port.link.port_up and speed and speed < (record.speed or 0.0):
                yield _Loss("slow", record.identity, names, speed)
