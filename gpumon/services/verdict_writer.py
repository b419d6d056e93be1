"""Stores changes of verdicts (transitions) before they take effect, and clears verdicts on the operator's request."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from gpumon.health.clear_request import ClearRequest, ClearResult, requested_clearance
from gpumon.health.node_health import pending_to_store
from gpumon.health.verdict import Clearance, VerdictChange, VerdictTransition
from gpumon.model.instant import Instant
from gpumon.services.write_behind import WriteBehind
from gpumon.state.messages import VerdictTransitions
from gpumon.state.report import Report
from gpumon.store import verdicts
from gpumon.store.store_error import StoreError
from gpumon.supervisor.loop import Loop

PENDING_SECONDS = 15.0
"""Interval in seconds at which pending verdicts are stored: those whose fault has not lasted long enough yet."""
UPDATE_SECONDS = 60.0
"""Interval in seconds at which open verdicts are stored with the time at which their fault was last observed."""


class VerdictWriter:
    """Service that stores verdicts and their transitions. Use from the loop's thread, except `clear`."""

    def __init__(self, loop: Loop, writes: WriteBehind, latest: Callable[[], Report]) -> None:
        self._loop = loop
        self._writes = writes
        self._latest = latest
        self._in_flight = False
        """True from the time that transitions are submitted to the store until they have taken effect."""
        self._requests: list[tuple[ClearRequest, Future[ClearResult]]] = []
        self._stopping = False

    def start(self) -> None:
        self._loop.every(UPDATE_SECONDS, self.update)
        self._loop.every(PENDING_SECONDS, self.put_pending)

    def stop(self) -> None:
        """Refuse the waiting requests to clear verdicts, and store the open and pending verdicts."""
        self._stopping = True
        for _, answer in self._requests:
            answer.set_result(_STOPPING)
        self._requests.clear()
        self.update()
        self.put_pending()

    def update(self) -> None:
        """Store the open verdicts with the times of their last observation. Do nothing while storing transitions."""
        if not self._in_flight:
            self._writes.put(verdicts.TABLE, [tuple(self._latest().health.open.values())])

    def put_pending(self) -> None:
        """Store the pending verdicts. Do nothing before the stored state has been read."""
        report = self._latest()
        if report.agent.restored:
            self._writes.put(verdicts.PENDING, [tuple(pending_to_store(report.health, report.boot_id))])

    def record_due(self) -> None:
        """Store the verdict transitions that are due, as one batch. Do nothing until an earlier batch is in effect."""
        due = self._latest().health.due
        if due and not self._in_flight and not self._stopping:
            self._in_flight = True
            self._writes.record(VerdictTransitions(transitions=due), lambda _: self._settle())

    def clear(self, request: ClearRequest) -> Future[ClearResult]:
        """Clear the verdicts that match the request. Any thread may call this.

        Return a future with the result. It is set when the clearances have taken effect, which they do even if they
        cannot be stored (`stored` is then False), or at once if no verdict can be cleared.
        """

        def enqueue(answer: Future[ClearResult]) -> None:
            if self._stopping:
                answer.set_result(_STOPPING)
                return
            self._requests.append((request, answer))
            self._process_requests()

        return self._loop.request(enqueue)

    def _settle(self) -> None:
        self._in_flight = False
        self._process_requests()

    def _process_requests(self) -> None:
        """Process the waiting requests, unless transitions that may change them are being stored."""
        while self._requests and not self._in_flight:
            request, answer = self._requests.pop(0)
            self._process(request, answer)

    def _process(self, request: ClearRequest, answer: Future[ClearResult]) -> None:
        report = self._latest()
        result = requested_clearance(request, report.health, {state.uuid for state in report.gpus})
        if not result.cleared:
            answer.set_result(result)
            return
        self._in_flight = True

        def settle(error: StoreError | None) -> None:
            answer.set_result(replace(result, stored=error is None))
            self._settle()

        clear = partial(
            VerdictTransition,
            change=VerdictChange.CLEARED,
            time=Instant.now(report.boot_id),
            cleared_by=Clearance.OPERATOR,
            note=request.note,
            muted=report.maintenance is not None,
        )
        transitions = tuple(clear(verdict=verdict) for verdict in result.cleared)
        self._writes.record(VerdictTransitions(transitions=transitions), settle)


_STOPPING = ClearResult(error="The agent is stopping.")
