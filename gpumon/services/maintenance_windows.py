"""Who puts the node into maintenance, until when, and that it is on record."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

from gpumon.clock import boot_clock
from gpumon.model.maintenance import Maintenance, MaintenanceEnded, begun, ended, in_force, wrong_reason
from gpumon.model.release import Answer
from gpumon.model.time_window import ASK_FOR_LESS, wrong_length
from gpumon.services.persistence import Persistence
from gpumon.state.report import Report
from gpumon.store import spans
from gpumon.supervisor.loop import Loop

_STOPPING = Answer(refused="The agent is stopping.", remedy="Ask again when it has started.")


class Maintaining:
    """Use from the loop's thread, but for `request` and `end`."""

    def __init__(
        self,
        loop: Loop,
        persistence: Persistence,
        *,
        most: float,
        latest: Callable[[], Report],
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called when one has begun or was ended, by request."""
        self._loop = loop
        self._persistence = persistence
        self.most = most
        """Seconds; longest maintenance."""
        self._latest = latest
        self._changed = changed
        self._stopping = False

    def apply(self, max_seconds: float) -> None:
        """Limit the maintenances that are requested from now on."""
        self.most = max_seconds

    def stop(self) -> None:
        """Whoever asks now is told so."""
        self._stopping = True

    def request(self, seconds: float, reason: str, by: str) -> Future[Answer]:
        """From any thread: begin one. The answer comes when it is on record, or the disk was waited for long enough."""
        return self._post(lambda future: self._begin(seconds, reason.strip(), by, future))

    def end(self) -> Future[Answer]:
        """From any thread: end the one in force."""
        return self._post(self._end)

    def _post(self, work: Callable[[Future[Answer]], None]) -> Future[Answer]:
        future: Future[Answer] = Future()
        future.set_running_or_notify_cancel()  # from now on nobody but us ends it
        self._loop.post(lambda: future.set_result(_STOPPING) if self._stopping else work(future))
        return future

    def _begin(self, seconds: float, reason: str, by: str, future: Future[Answer]) -> None:
        wrong, remedy = wrong_reason(reason), 'Say why in a few words: --reason "new power supply".'
        if too_long := wrong_length(seconds, self.most, "maintenance.max_seconds"):
            wrong, remedy = too_long, ASK_FOR_LESS
        if wrong:
            future.set_result(Answer(refused=wrong, remedy=remedy))
            return
        report, wall, at = self._latest(), time.time(), boot_clock()
        one = Maintenance(
            began=wall,
            began_at=at,
            until=wall + seconds,
            deadline=at + seconds,
            boot_id=report.boot_id,
            reason=reason,
            by=by,
        )
        self._record(begun(report.maintenances, one), one, future)

    def _end(self, future: Future[Answer]) -> None:
        known = self._latest().maintenances
        if in_force(known) is None:
            future.set_result(Answer())
            return
        told = MaintenanceEnded(time.time(), boot_clock())
        self._record(ended(known, told), told, future)

    def _record(
        self, windows: tuple[Maintenance, ...], message: Maintenance | MaintenanceEnded, future: Future[Answer]
    ) -> None:
        self._persistence.record(
            lambda connection: spans.put(connection, windows), message, lambda stored: self._settled(future, stored)
        )

    def _settled(self, future: Future[Answer], stored: bool) -> None:  # noqa: FBT001 - Memories calls it so
        future.set_result(Answer(stored=stored))
        self._changed()
