"""Lets the operator accept the current inventory: what is missing, down or slower is then no longer a fault."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Collection
from concurrent.futures import Future
from functools import partial

from gpumon.model.request import RequestResult
from gpumon.services.write_behind import WriteBehind
from gpumon.state import acceptance
from gpumon.state.messages import Acceptance
from gpumon.state.report import Report
from gpumon.store import records
from gpumon.store.store_error import StoreError
from gpumon.supervisor.loop import Loop

log = logging.getLogger("gpumon")


class InventoryAcceptance:
    """Service that executes `gpumon inventory accept`. Any thread may call `request`."""

    def __init__(self, loop: Loop, writes: WriteBehind, latest: Callable[[], Report]) -> None:
        self._loop = loop
        self._writes = writes
        self._latest = latest

    def request(self, parts: Collection[str] = ()) -> Future[RequestResult]:
        """Accept that GPUs or ports are missing, down, slower or have fewer PCIe lanes.

        `parts`: GPUs (uuid or PCI address) and ports (such as mlx5_3/1) to accept; empty for all. Return a future. Its
        result is set when the acceptance is stored and in effect, or when it is refused or cannot be stored.
        """
        return self._loop.request(lambda answer: self._accept(parts, answer))

    def _accept(self, parts: Collection[str], answer: Future[RequestResult]) -> None:
        report = self._latest()
        refusal = acceptance.refusal(report, parts)
        if refusal is not None:
            answer.set_result(refusal)
            return
        accepted = acceptance.acceptance(report, parts)

        def settle(error: StoreError | None) -> None:
            if error is not None:
                refused = f"It cannot be stored: {error.problem}."
                answer.set_result(RequestResult(refused=refused, remedy=f"{error.remedy}."))
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

        self._writes.record(partial(_store, accepted), accepted, settle, required=True)


def _store(accepted: Acceptance, connection: sqlite3.Connection) -> None:
    records.accept_gpus(connection, accepted.count, accepted.gone)
    records.accept_lanes(connection, accepted.lanes)
    records.accept_ports(connection, accepted.ports, accepted.slow)
