"""Verdicts on their way to the store and back: what is due, what a person acknowledges, when each was last so."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from gpumon.clock import boot_clock
from gpumon.health.acknowledge import Acknowledged, Asked, acknowledged
from gpumon.health.terms import Way
from gpumon.health.verdict import Verdict, VerdictChange, VerdictTransition
from gpumon.services.persistence import Persistence
from gpumon.state.report import Report
from gpumon.supervisor.loop import Loop

WAIT_SECONDS = 15.0
"""How often it is stored what waits to become a verdict, where something does."""
TOUCH_SECONDS = 60.0
"""How often it is stored when verdicts were last so."""


class VerdictWriter:
    """Use from the loop's thread, but for `acknowledge`."""

    def __init__(self, loop: Loop, persistence: Persistence, latest: Callable[[], Report]) -> None:
        self._loop = loop
        self._persistence = persistence
        self._latest = latest
        self._under_way = False
        """Rulings are on their way to the store."""
        self._asked: list[tuple[Asked, Future[Acknowledged]]] = []
        self._stopping = False

    def start(self) -> None:
        self._loop.every(TOUCH_SECONDS, self.touch)
        self._loop.every(WAIT_SECONDS, self.wait)

    def stop(self) -> None:
        """Who waits is told; when verdicts were last so is stored."""
        self._stopping = True
        for _, future in self._asked:
            future.set_result(_STOPPING)
        self._asked.clear()
        self.touch()
        self.wait()

    def touch(self) -> None:
        """Have it stored when verdicts were last so."""
        self._persistence.touch_verdicts(self._latest())

    def wait(self) -> None:
        """Have it stored what waits to become a verdict."""
        self._persistence.keep_waiting(self._latest())

    def tick(self) -> None:
        """Have what is due stored, and then told; one batch at a time."""
        due = self._latest().health.due
        if due and not self._under_way and not self._stopping:
            self._under_way = True
            self._persistence.record_transitions(due, lambda _: self._settled())

    def acknowledge(self, asked: Asked) -> Future[Acknowledged]:
        """From any thread: clear these verdicts. Answers when that is stored, or will not be."""
        future: Future[Acknowledged] = Future()
        future.set_running_or_notify_cancel()  # from now on nobody but us ends it
        self._loop.post(lambda: self._take(asked, future))
        return future

    def _take(self, asked: Asked, future: Future[Acknowledged]) -> None:
        if self._stopping:
            future.set_result(_STOPPING)
            return
        self._asked.append((asked, future))
        self._acknowledge()

    def _settled(self) -> None:
        self._under_way = False
        self._acknowledge()

    def _acknowledge(self) -> None:
        """The first that waits; what is on its way may change what there is to be acknowledged."""
        while self._asked and not self._under_way:
            asked, future = self._asked.pop(0)
            self._answer(asked, future)

    def _answer(self, asked: Asked, future: Future[Acknowledged]) -> None:
        report = self._latest()
        answer = acknowledged(asked, report.health, {state.uuid for state in report.gpus})
        if not answer.cleared:
            future.set_result(answer)
            return
        self._under_way = True

        def settled(stored: bool) -> None:  # noqa: FBT001 - Memories calls it so
            future.set_result(replace(answer, stored=stored))
            self._settled()

        self._persistence.record_transitions([_transition(one, asked.note, report) for one in answer.cleared], settled)


_STOPPING = Acknowledged(trouble="The agent is stopping.")


def _transition(verdict: Verdict, note: str, report: Report) -> VerdictTransition:
    return VerdictTransition(
        verdict=verdict,
        change=VerdictChange.CLEARED,
        wall=time.time(),
        at=boot_clock(),
        boot_id=report.boot_id,
        way=Way.ACKNOWLEDGED,
        note=note,
        muted=report.maintenance is not None,
    )
