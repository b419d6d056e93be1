"""Who keeps probes away from the GPUs, until when, and that nothing of a run is on them any more."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from gpumon.clock import boot_clock
from gpumon.model.hold import MOST_HELD, Hold, HoldEnded, in_force, wrong_owner
from gpumon.model.release import Answer, Holder
from gpumon.model.time_window import ASK_FOR_LESS, wrong_length, wrong_reason
from gpumon.probe.runner.runs import ProbeRuns
from gpumon.services.persistence import Persistence
from gpumon.state.report import Report
from gpumon.store import spans
from gpumon.supervisor.loop import Loop

ANSWER_SECONDS = 2.5
"""Longest that somebody waits: a rank that has more to give back than this allows is told of as not gone yet."""
LOOK_SECONDS = 0.01
"""How often is looked whether all is gone, while somebody waits."""
UNENDED = "The run has not ended, so whether what its ranks have started is on a GPU is not known."
UNSEEN = "NVML has not been read since the ranks ended, so whether they have left the GPUs is not known."
_STOPPING = Answer(refused="The agent is stopping.", remedy="Ask again when it has ended or started.")


@dataclass(slots=True)
class _Waiting:
    """Somebody who wants to use the GPUs."""

    future: Future[Answer]
    gpus: tuple[str, ...]
    """On which something of a run was, or may have been."""
    pids: frozenset[int]
    """Of its ranks, those that have ended among them."""
    give_up_at: float
    stored: bool | None = None
    """None: not yet known."""
    ended: float | None = None
    """When the last rank was gone, on the boot clock."""


class Holding:
    """Use from the loop's thread, but for `request` and `end`."""

    def __init__(
        self,
        loop: Loop,
        persistence: Persistence,
        probing: ProbeRuns,
        *,
        most: float,
        latest: Callable[[], Report],
        tell: Callable[[Hold | HoldEnded], None],
    ) -> None:
        self._loop = loop
        self._persistence = persistence
        self._probing = probing
        self.most = most
        """Seconds; longest hold."""
        self._latest = latest
        self._tell = tell
        self._waiting: list[_Waiting] = []
        self._stopping = False

    def apply(self, max_seconds: float) -> None:
        """Limit the holds that are requested from now on."""
        self.most = max_seconds

    def stop(self) -> None:
        """Whoever waits or asks now is told so. Holds stay on record."""
        self._stopping = True
        for one in self._waiting:
            one.future.set_result(_STOPPING)
        self._waiting.clear()

    def request(self, seconds: float, reason: str, owner: str, by: str) -> Future[Answer]:
        """From any thread: keep probes away. The answer comes when nothing of a run is left, or will not go."""
        return self._post(lambda future: self._begin(seconds, reason.strip(), owner.strip(), by, future))

    def end(self, owner: str) -> Future[Answer]:
        """From any thread: end the hold of this owner."""
        give_up_at = boot_clock() + ANSWER_SECONDS
        return self._post(lambda future: self._end(owner.strip(), give_up_at, future))

    def _post(self, work: Callable[[Future[Answer]], None]) -> Future[Answer]:
        future: Future[Answer] = Future()
        future.set_running_or_notify_cancel()  # from now on nobody but us ends it
        self._loop.post(lambda: future.set_result(_STOPPING) if self._stopping else work(future))
        return future

    def _begin(self, seconds: float, reason: str, owner: str, by: str, future: Future[Answer]) -> None:
        refusal = self._refusal(seconds, reason, owner)
        if refusal is not None:
            future.set_result(refusal)
            return
        wall, at = time.time(), boot_clock()
        waiting = _Waiting(future, self._probing.gpus, self._probing.pids, at + ANSWER_SECONDS)
        one = Hold(
            began=wall,
            began_at=at,
            until=wall + seconds,
            deadline=at + seconds,
            boot_id=self._latest().boot_id,
            reason=reason,
            by=by,
            owner=owner,
        )
        self._tell(one)  # from here on no run begins, whatever the disk does
        self._probing.give_way()
        if waiting.gpus:
            self._probing.look()
        self._wait(waiting)

    def _refusal(self, seconds: float, reason: str, owner: str) -> Answer | None:
        if wrong := wrong_length(seconds, self.most, "probe.max_hold_seconds"):
            return Answer(refused=wrong, remedy=ASK_FOR_LESS)
        if wrong := wrong_reason(reason) or wrong_owner(owner):
            return Answer(refused=wrong, remedy="Say it in a few words.")
        if len(in_force(self._latest().holds)) >= MOST_HELD:
            return Answer(refused=f"{MOST_HELD} holds are in force.", remedy="End some, or let them expire.")
        return None

    def _end(self, owner: str, give_up_at: float, future: Future[Answer]) -> None:
        """What the store has not told yet cannot be ended yet."""
        if not self._latest().internal.restored and boot_clock() < give_up_at:
            self._loop.call_after(LOOK_SECONDS, lambda: self._end(owner, give_up_at, future))
            return
        self._tell(HoldEnded(owner=owner, wall=time.time(), at=boot_clock()))
        self._record(lambda stored: future.set_result(Answer(stored=stored)))

    def _record(self, settled: Callable[[bool], None]) -> None:
        holds = self._latest().holds
        self._persistence.record(lambda connection: spans.put(connection, holds), None, settled)

    def _wait(self, waiting: _Waiting) -> None:
        def settled(stored: bool) -> None:  # noqa: FBT001 - Memories calls it so
            waiting.stored = stored
            self._look()

        self._record(settled)
        self._waiting.append(waiting)
        if len(self._waiting) == 1:
            self._hurry()
        else:
            self._look()

    def _hurry(self) -> None:
        self._look()
        if self._waiting:
            self._loop.call_after(LOOK_SECONDS, self._hurry)

    def _look(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            answer = self._answer(one)
            if answer is None:
                self._waiting.append(one)
            else:
                one.future.set_result(answer)

    def _answer(self, one: _Waiting) -> Answer | None:
        """None: there is still something to wait for."""
        late = boot_clock() >= one.give_up_at
        left = self._probing.holders()
        if left:
            return Answer(holders=left, stored=bool(one.stored)) if late or _stuck(left) else None
        one.ended = one.ended or boot_clock()
        there = self._probing.left_on(one.gpus, one.pids, one.ended) if one.gpus else ()
        if not late and (self._probing.running or one.stored is None or there != ()):
            return None
        unseen = UNSEEN if there is None else UNENDED if self._probing.running and not there else ""
        return Answer(holders=there or (), unseen=unseen, stored=bool(one.stored))


def _stuck(left: tuple[Holder, ...]) -> bool:
    return bool(left) and all(one.stuck for one in left)
