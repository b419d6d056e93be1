"""Keeps one links child running. A device whose files do not answer is left aside, and tried again now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpumon.clock import boot_clock
from gpumon.model.orders import LinksOrders
from gpumon.model.snapshot import ChildMessage, LinksSnapshot
from gpumon.state.messages import LinksStatus, Quarantine
from gpumon.supervisor.framed_child import ChildProgram, FramedChild
from gpumon.supervisor.loop import Loop, Timer

log = logging.getLogger("gpumon.supervisor")

LOOK_SECONDS = 0.5
SILENCE_SECONDS = 60.0
MOST_ABANDONED = 2
"""Beyond that no links child is started: something is wrong with the host, and each would be one more."""
BACK_OFF = (0.5, 30.0)
STEADY_SECONDS = 60.0
"""Age from which the end of a child is a new trouble and not the last one going on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """All in seconds."""

    read: float = 10.0
    """After which reading one file is late. It asks the device's firmware, which the kernel gives a minute."""
    first_retry: float = 60.0
    """Until a device that was left aside is tried again; doubled each time that it fails again."""
    last_retry: float = 600.0


@dataclass(frozen=True, slots=True)
class _Stuck:
    aside: Quarantine
    pause: float
    retry_at: float
    waiting: bool = True
    """False: it is being tried, and on trial until it has answered."""


class LinksSupervisor:
    """Use from the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        orders: Callable[[int], LinksOrders],
        *,
        on_seen: Callable[[LinksSnapshot], None],
        on_state: Callable[[LinksStatus], None],
        patience: Patience = Patience(),
    ) -> None:
        self._loop = loop
        self._orders = orders
        self._on_seen = on_seen
        self._on_state = on_state
        self._patience = patience
        self._child: FramedChild | None = None
        self._abandoned: list[FramedChild] = []
        self._stuck: dict[str, _Stuck] = {}
        self._delay = BACK_OFF[0]
        self._starting: Timer | None = None
        self._trouble = ""
        self._told = LinksStatus()
        self._stopping = False

    def start(self) -> None:
        self._start()
        self._loop.every(LOOK_SECONDS, self._look)

    def stop(self) -> None:
        """Kill it; it is not started again."""
        self._stopping = True
        if self._child is not None:
            self._child.kill("stop")

    def apply(self, orders: Callable[[int], LinksOrders]) -> None:
        """Use these orders for the next child."""
        self._orders = orders

    @property
    def running(self) -> bool:
        """Whether the child is still to end (an abandoned one never may)."""
        return self._child is not None

    # What a look finds

    def _look(self) -> None:
        child = self._child
        if child is not None and child.killed_for is None and not self._stopping:
            if child.is_late():
                self._late(child)
            elif child.is_silent():
                log.error("the links child says nothing; replacing it", extra={"child": child.name})
                child.kill("silence")
            elif self._due():
                child.kill("readmit")
        self._tell()

    def _late(self, child: FramedChild) -> None:
        call = child.call
        log.error("a file does not answer; going on without it", extra={"file": call.call, "subject": call.bus_id})
        before = self._stuck.get(call.bus_id)
        patience = self._patience
        pause = patience.first_retry if before is None else min(2 * before.pause, patience.last_retry)
        aside = Quarantine(fault="stuck", detail=f"reading {call.call} does not return", wall=time.time())
        if before is not None:
            aside = replace(aside, wall=before.aside.wall)
        self._stuck[call.bus_id] = _Stuck(aside, pause, boot_clock() + pause)
        child.kill("deadline")

    def _due(self) -> bool:
        """Whether what was left aside is to be tried again: never while a child that tried it cannot be ended."""
        return not self._abandoned and any(
            stuck.waiting and stuck.retry_at <= boot_clock() for stuck in self._stuck.values()
        )

    # What becomes of children

    def _message(self, message: ChildMessage) -> None:
        """A look that went through all files: what was on trial has answered."""
        if isinstance(message, LinksSnapshot):
            self._trouble = ""
            for subject in [subject for subject, stuck in self._stuck.items() if not stuck.waiting]:
                log.info("the files answer again", extra={"subject": subject})
                del self._stuck[subject]
            self._on_seen(message)
            self._tell()

    def _ended(self, child: FramedChild, code: int) -> None:
        if child in self._abandoned:
            log.warning("a child that could not be ended has ended", extra={"child": child.pid})
            self._abandoned.remove(child)
            if self._child is None and not self._stopping:
                self._restart(0.0)
            return
        self._child = None
        if self._stopping:
            return
        if child.age > STEADY_SECONDS:
            self._delay = BACK_OFF[0]
        if child.killed_for in {"readmit", "deadline"}:
            self._restart(0.0)
            return
        log.error("the links child ended", extra={"code": code, "in": self._delay})
        self._trouble = "the child that reads the links has ended; the log says why"
        self._restart(self._delay)
        self._delay = min(2 * self._delay, BACK_OFF[1])

    def _was_abandoned(self, child: FramedChild) -> None:
        log.error("SIGKILL does not end this child: it sits in the kernel", extra={"child": child.name})
        self._abandoned.append(child)
        self._child = None
        if len(self._abandoned) < MOST_ABANDONED:
            self._restart(0.0)
        self._tell()

    def _restart(self, delay: float) -> None:
        if self._starting is not None:
            self._starting.cancel()
        self._starting = self._loop.call_after(delay, self._start)

    def _start(self) -> None:
        self._starting = None
        if self._child is not None or self._stopping:
            return
        if not self._abandoned:
            now = boot_clock()
            for subject, stuck in self._stuck.items():
                self._stuck[subject] = replace(stuck, waiting=stuck.retry_at > now)
        try:
            self._child = self._started()
        except OSError as error:  # no process, no memory, no interpreter: this too may pass
            self._trouble = f"no child can be started: {error}"
            log.error("no links child can be started; trying again", extra={"error": str(error), "in": self._delay})  # noqa: TRY400
            self._restart(self._delay)
            self._delay = min(2 * self._delay, BACK_OFF[1])

    def _started(self) -> FramedChild:
        aside = tuple(subject for subject, stuck in self._stuck.items() if stuck.waiting)
        child = FramedChild(
            self._loop,
            lambda page: ChildProgram(
                name="links",
                module="gpumon.collectors.links",
                orders=replace(self._orders(page), leave_aside=aside).encode(),
                silence=SILENCE_SECONDS,
                deadline=lambda _: self._patience.read,
            ),
            on_message=self._message,
            on_end=lambda code: self._ended(child, code),
            on_abandoned=lambda: self._was_abandoned(child),
        )
        return child

    def _tell(self) -> None:
        now = LinksStatus(
            aside={subject: stuck.aside for subject, stuck in self._stuck.items()},
            abandoned=tuple(child.name for child in self._abandoned),
            trouble=self._trouble,
        )
        if now != self._told:
            self._told = now
            self._on_state(now)
