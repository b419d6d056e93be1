"""Starts and ends time windows on request: releases, holds and maintenances.

A requested window is in force at once. The request to start it is answered when the window is stored and its effect is
complete, at the latest after the effect's answer_seconds. A request to end windows is answered when the end is stored.
The effect of a release is in driver_release.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from gpumon.clock import boot_clock
from gpumon.model.instant import Instant
from gpumon.model.request import RequestResult
from gpumon.model.time_window import (
    END_SOME,
    LOWER_DURATION,
    TimeWindow,
    WindowKind,
    WindowRequest,
    WindowSelection,
    WindowsEnded,
    duration_problem,
    in_force,
    new_window,
    number_problem,
    owner_problem,
    reason_problem,
)
from gpumon.runner.runs import ProbeRuns
from gpumon.services.persistence import window_rows
from gpumon.services.write_behind import OnDone, WriteBehind
from gpumon.state.report import Report
from gpumon.store import records
from gpumon.store.store_error import StoreError
from gpumon.supervisor.loop import Loop

POLL_SECONDS = 0.02
"""Interval in seconds at which a waiting request checks whether the effect of its window is complete."""
RECALL_SECONDS = 2.5
"""Maximum seconds that a request to end windows waits until the stored windows have been read."""
SETTINGS = {
    WindowKind.RELEASE: "release.max_seconds",
    WindowKind.HOLD: "probe.max_hold_seconds",
    WindowKind.MAINTENANCE: "maintenance.max_seconds",
}
_ENDED = RequestResult(not_readable="The window was ended before it had its full effect. It is not in force.")
_STOPPING = RequestResult(refused="The agent is stopping.", remedy="Ask again when it has started.")
UNENDED = "The run has not ended, so whether its ranks have left a process on a GPU is unknown."
UNREAD = "NVML has not been read since the ranks ended, so whether they have left the GPUs is unknown."
Completion = Callable[[bool], RequestResult | None]
"""Function that returns the result of a request; None while the effect of the request's window is not complete. The
argument is True when the time for an answer is over; the function must then return a result.
"""


class WindowEffect(Protocol):
    """The effect that windows of one kind have on the agent, such as closing GPUs for a release."""

    answer_seconds: float
    """Maximum seconds that a request for a window waits for the effect to be complete."""

    def follow(self) -> None:
        """Apply the windows in force. Called after each request that starts or ends a window of this kind."""

    def completion(self, window: TimeWindow, /) -> Completion:
        """Return a function that checks whether the effect of `window`, which must be in force, is complete.

        `completion`, or the function that it returns, may also start the effect.
        """


@dataclass(slots=True)
class _Waiting:
    """A request for a window that waits for its answer. The window has been in force."""

    window: TimeWindow
    future: Future[RequestResult]
    completion: Completion
    answer_by: float
    stored: bool | None = None
    """True if the window was stored, False if that failed or took too long; None while it is being stored."""


class TimeWindows:
    """Service that starts and ends time windows. Use from the loop's thread, except `start` and `end`."""

    def __init__(
        self,
        loop: Loop,
        writes: WriteBehind,
        effects: Mapping[WindowKind, WindowEffect],
        *,
        max_seconds: Mapping[WindowKind, float],
        latest: Callable[[], Report],
        publish: Callable[[TimeWindow | WindowsEnded], None],
    ) -> None:
        self._loop = loop
        self._writes = writes
        self._effects = effects
        self._max_seconds = max_seconds
        self._latest = latest
        self._publish = publish
        self._waiting: list[_Waiting] = []
        self._stopping = False

    def apply(self, max_seconds: Mapping[WindowKind, float]) -> None:
        self._max_seconds = max_seconds

    def stop(self) -> None:
        """Refuse the waiting requests and all further ones. A window that was started remains in force."""
        self._stopping = True
        for waiting in self._waiting:
            waiting.future.set_result(_STOPPING)
        self._waiting.clear()

    def start(self, request: WindowRequest) -> Future[RequestResult]:
        """Start a window, which replaces the one in force with this kind, GPU and owner. Any thread may call this."""
        request = replace(request, owner=request.owner.strip(), reason=request.reason.strip())
        return self._post(lambda future: self._start(request, future))

    def end(self, selection: WindowSelection) -> Future[RequestResult]:
        """End the windows in force that match the selection. Any thread may call this."""
        end_by = boot_clock() + RECALL_SECONDS
        return self._post(lambda future: self._end(selection, end_by, future))

    def _post(self, work: Callable[[Future[RequestResult]], None]) -> Future[RequestResult]:
        return self._loop.request(lambda future: future.set_result(_STOPPING) if self._stopping else work(future))

    def _start(self, request: WindowRequest, future: Future[RequestResult]) -> None:
        effect, report = self._effects[request.kind], self._latest()
        window = new_window(request, Instant.now(report.boot_id))
        refusal = self._refusal(request, window)
        if refusal is not None:
            future.set_result(refusal)
            return
        self._publish(window)
        waiting = _Waiting(window, future, effect.completion(window), window.started.at + effect.answer_seconds)
        effect.follow()

        def note_stored(error: StoreError | None) -> None:
            waiting.stored = error is None
            self._answer()

        self._store(note_stored)
        self._waiting.append(waiting)
        if len(self._waiting) == 1:
            self._poll()
        else:
            self._answer()

    def _refusal(self, request: WindowRequest, window: TimeWindow) -> RequestResult | None:
        if problem := duration_problem(request.seconds, self._max_seconds[request.kind], SETTINGS[request.kind]):
            return RequestResult(refused=problem, remedy=LOWER_DURATION)
        maintenance = request.kind is WindowKind.MAINTENANCE
        if problem := reason_problem(request.reason, required=maintenance) or owner_problem(request.owner):
            return RequestResult(refused=problem, remedy='Use a few words: --reason "new power supply".')
        if problem := number_problem(self._latest().windows, window):
            return RequestResult(refused=problem, remedy=END_SOME)
        return None

    def _end(self, selection: WindowSelection, end_by: float, future: Future[RequestResult]) -> None:
        report = self._latest()
        if not report.agent.restored and boot_clock() < end_by:  # a stored window cannot be ended before it is read
            self._loop.call_after(POLL_SECONDS, lambda: self._end(selection, end_by, future))
            return
        ended = [window for window in in_force(report.windows) if selection.matches(window)]
        if not ended:
            future.set_result(RequestResult())
            return
        ids = frozenset(window.id for window in ended)
        self._publish(WindowsEnded(ids=ids, by=selection.by, time=Instant.now(report.boot_id)))
        for kind in {window.kind for window in ended}:
            self._effects[kind].follow()
        self._store(lambda error: future.set_result(RequestResult(stored=error is None)))

    def _store(self, on_done: OnDone) -> None:
        self._writes.write(partial(records.put_windows, windows=window_rows(self._latest())), on_done)

    def _poll(self) -> None:
        self._answer()
        if self._waiting:
            self._loop.call_after(POLL_SECONDS, self._poll)

    def _answer(self) -> None:
        """Answer each waiting request whose window is stored and has its full effect or has ended, or has timed out.

        Also answer a request if each process that still prevents the full effect is one that SIGKILL has not ended.
        """
        waiting, self._waiting = self._waiting, []
        slots = {window.slot for window in in_force(self._latest().windows)}
        for request in waiting:
            late = boot_clock() >= request.answer_by
            result = request.completion(late) if request.window.slot in slots else _ENDED
            if result is None or (request.stored is None and not late):
                self._waiting.append(request)
            else:
                request.future.set_result(replace(result, stored=bool(request.stored)))


class MaintenanceEffect:
    """Calls `record` at once when a maintenance begins or ends.

    A reboot during the maintenance then does not count as a failure, and `gpumon check` shows the maintenance.
    """

    answer_seconds = 7.0
    """Maximum seconds until the request is answered. In less time, the write to the store has succeeded or failed."""

    def __init__(self, record: Callable[[], None]) -> None:
        self.follow = record

    def completion(self, _: TimeWindow, /) -> Completion:
        return lambda _late: RequestResult()


class HoldEffect:
    """Ends the probe run in progress, and waits until none of its processes uses a GPU."""

    answer_seconds = 4.0
    """Maximum seconds until the request is answered. The answer names a rank that takes longer to close a GPU."""

    def __init__(self, probing: ProbeRuns) -> None:
        self._probing = probing

    def follow(self) -> None:
        """Do nothing: `completion` ends the run in progress, and each later run checks for holds before it begins."""

    def completion(self, _: TimeWindow, /) -> Completion:
        host, visibility = self._probing.host, self._probing.host.visibility
        gpus, pids, ended = visibility.gpus, host.pids, None
        self._probing.give_way()
        if gpus:
            visibility.read_closely()

        def poll(late: bool) -> RequestResult | None:  # noqa: FBT001 - the signature of Completion
            nonlocal ended
            holders = host.holders()
            if holders:
                stuck = all(holder.stuck for holder in holders)
                return RequestResult(holders=holders) if late or stuck else None
            ended = ended or boot_clock()
            left = visibility.remaining_on(gpus, pids, ended) if gpus else ()
            if not late and (self._probing.running or left != ()):
                return None
            unknown = UNREAD if left is None else UNENDED if self._probing.running and not left else ""
            return RequestResult(holders=left or (), not_readable=unknown)

        return poll
