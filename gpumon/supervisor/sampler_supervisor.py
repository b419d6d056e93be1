"""Keeps one sampler running, whatever the driver does, and tries stuck GPUs again with short-lived trial children."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpumon.clock import boot_clock
from gpumon.collectors.lifecycle import REST, WATCH
from gpumon.model.error_event import FIRMWARE_SILENT
from gpumon.model.orders import EXIT_MISMATCH, SamplerOrders
from gpumon.model.release import NODE, Holder
from gpumon.model.snapshot import ChildMessage, Snapshot, TrialResult, XidEvent
from gpumon.state.messages import Quarantine, SamplerStatus
from gpumon.supervisor.loop import Loop, Timer
from gpumon.supervisor.sampler_child import SamplerChild

log = logging.getLogger("gpumon.supervisor")

LOOK_SECONDS = 0.5
MOST_ABANDONED = 3
MOST_EVENT_FAILURES = 3
"""Hangs and crashes inside the event set after which the readings matter more than the Xids."""
GAVE_UP_SECONDS = 600.0
FIRST_TRIAL, EARLY_TRIALS, LATE_TRIALS = 5.0, 10.0, 60.0
"""Seconds until the first trial of a stuck GPU, between the trials of ten minutes, and between those after."""
EARLY = 600.0
BACK_OFF = (0.5, 30.0)
STEADY_SECONDS = 60.0
"""Age from which the end of a sampler is a new trouble and not the last one going on."""
CRASHES_A_GPU = 2
"""Crashes inside calls on one GPU after which that GPU is left aside."""
REASONS = ("deadline", "crash", "mismatch", "release", "readmit", "configuration")


@dataclass(frozen=True, slots=True)
class _Stuck:
    aside: Quarantine
    since: float
    trial_at: float


class SamplerSupervisor:
    """Use from the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        orders: Callable[[int], SamplerOrders],
        *,
        on_message: Callable[[ChildMessage], None],
        on_state: Callable[[SamplerStatus], None],
    ) -> None:
        self._loop = loop
        self._orders = orders
        self._on_message = on_message
        self._on_state = on_state
        self._sampler: SamplerChild | None = None
        self._trial: SamplerChild | None = None
        self._stuck: dict[str, _Stuck] = {}
        self._abandoned: list[SamplerChild] = []
        self._restarts: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._crashes: Counter[str] = Counter()
        self._past_calls = 0
        self._delay = BACK_OFF[0]
        self._starting: Timer | None = None
        self._told: SamplerStatus | None = None
        self._answering: dict[str, None] = {}
        """Bus ids that have answered, the last to do so at the end."""
        self._turns = 0
        self._event_failures = 0
        self._released: frozenset[str] = frozenset()
        self._watching = False
        self._stopping = False

    def start(self) -> None:
        self._start()
        self._loop.every(LOOK_SECONDS, self._look)

    def stop(self) -> None:
        """Kill everything; nothing is started again."""
        self._stopping = True
        for child in (self._sampler, self._trial):
            if child is not None:
                child.kill("stop")

    def apply(self, orders: Callable[[int], SamplerOrders]) -> None:
        """Use these orders from now on. Replace the sampler if they differ in more than the log level."""
        before, self._orders = self._orders, orders
        if replace(before(0), log_level="") != replace(orders(0), log_level=""):
            self.replace("configuration")

    @property
    def running(self) -> bool:
        """Whether any child is still to end (abandoned ones never may)."""
        return self._sampler is not None or self._trial is not None

    def replace(self, reason: str) -> None:
        """Replace the sampler by one with new orders."""
        if self._sampler is not None:
            self._sampler.kill(reason)
        else:
            self._restart(0.0)

    def watch(self, *, closely: bool) -> None:
        """Whether to read at every poll who holds the GPUs, for the present sampler and for those to come."""
        if closely is not self._watching:
            self._watching = closely
            if self._sampler is not None:
                self._sampler.say(WATCH if closely else REST)

    def note_xid(self, bus_id: str, xid: int) -> None:
        """A GPU has had this Xid just now, whoever told it."""
        if xid in FIRMWARE_SILENT and bus_id not in self._stuck:
            log.error("the GPU's firmware is silent; leaving it aside", extra={"bus_id": bus_id})
            self._leave_aside(bus_id, "stuck", f"Firmware silent since Xid {xid}")
            self.replace("deadline")

    # What is let go of

    def keep_off(self, released: frozenset[str]) -> None:
        """Hold none of these GPUs from now on, with NODE nothing at all; `holders` tells when that is so."""
        before, self._released = self._released, released
        if before == released:
            return
        for bus_id in before - released:
            self._try_at_once(bus_id)
        if self._trial is not None and _may_hold(self._trial, released):
            self._trial.kill("release")
        if self._sampler is not None:
            self._sampler.let_go("release")
        else:
            self._restart(0.0)

    def holders(self, released: frozenset[str]) -> tuple[Holder, ...]:
        """Children that have one of these GPUs open, or may have."""
        living = (self._sampler, self._trial, *self._abandoned)
        return tuple(
            Holder(pid=child.pid, words=child.name, stuck=child.abandoned)
            for child in living
            if child is not None and _may_hold(child, released)
        )

    def _try_at_once(self, bus_id: str) -> None:
        """What was stuck may have been repaired meanwhile; only a trial tells."""
        if bus_id == NODE:
            for one in self._stuck:
                self._try_at_once(one)
        elif bus_id in self._stuck:
            now = boot_clock()
            self._stuck[bus_id] = replace(self._stuck[bus_id], since=now, trial_at=now)

    # What a look finds

    def _look(self) -> None:
        if self._stopping:
            return
        sampler, trial = self._sampler, self._trial
        if sampler is not None and sampler.killed_for is None:
            if sampler.is_late():
                self._late(sampler)
            elif sampler.is_silent():
                log.error("the sampler says nothing; replacing it", extra={"child": sampler.name})
                sampler.kill("deadline")
        if trial is not None and trial.killed_for is None and (trial.is_late() or trial.is_silent()):
            trial.kill("deadline")
        self._try_again()
        self._tell()

    def _late(self, child: SamplerChild) -> None:
        call = child.call
        log.error(
            "a driver call does not return; replacing the sampler", extra={"call": call.call, "bus_id": call.bus_id}
        )
        if call.bus_id:
            self._leave_aside(call.bus_id, "stuck", f"{call.call} does not return")
        child.kill("deadline")

    def _leave_aside(self, bus_id: str, fault: str, detail: str) -> None:
        now = boot_clock()
        if bus_id not in self._stuck:
            aside = Quarantine(fault=fault, detail=detail, wall=time.time())
            self._stuck[bus_id] = _Stuck(aside, now, now + FIRST_TRIAL)
        self._tell()

    def _try_again(self) -> None:
        if self._trial is not None or self._abandoned or NODE in self._released:
            return
        stuck = self._stuck.items()
        due = [one for one, trouble in stuck if trouble.trial_at <= boot_clock() and one not in self._released]
        if due:
            bus_id = min(due, key=lambda one: self._stuck[one].trial_at)
            self._trial = self._child(lambda page: replace(self._orders(page), trial=bus_id), self._trial_message)
            if self._trial is None:
                self._try_later(bus_id)

    def _try_later(self, bus_id: str) -> None:
        stuck = self._stuck.get(bus_id)
        if stuck is not None:
            pause = EARLY_TRIALS if boot_clock() - stuck.since < EARLY else LATE_TRIALS
            self._stuck[bus_id] = replace(stuck, trial_at=boot_clock() + pause)

    # What children say

    def _message(self, message: ChildMessage) -> None:
        self._on_message(message)
        if isinstance(message, Snapshot):
            self._note_answers(message)
        if isinstance(message, XidEvent) and message.bus_id:
            self.note_xid(message.bus_id, message.xid)

    def _note_answers(self, snapshot: Snapshot) -> None:
        for gpu in snapshot.gpus:
            self._answering.pop(gpu.bus_id, None)
            if gpu.gpu is not None:
                self._answering[gpu.bus_id] = None

    def _trial_message(self, message: ChildMessage) -> None:
        if isinstance(message, TrialResult) and message.bus_id in self._stuck:
            log.info("the GPU answers again; readmitting it", extra={"bus_id": message.bus_id})
            del self._stuck[message.bus_id]
            self._crashes.pop(message.bus_id, None)
            self.replace("readmit")
            self._tell()

    # How they end

    def _ended(self, child: SamplerChild, code: int) -> None:
        self._past_calls += child.call.calls
        if child in self._abandoned:
            log.info("an abandoned child ended after all", extra={"child": child.name})
            self._abandoned.remove(child)
            if self._sampler is None:
                self._restart(0.0)
        elif child is self._trial:
            self._trial_ended(child)
        elif child is self._sampler:
            self._sampler = None
            self._sampler_ended(child, code)

    def _trial_ended(self, trial: SamplerChild) -> None:
        self._trial = None
        self._try_later(trial.orders.trial or "")

    def _sampler_ended(self, child: SamplerChild, code: int) -> None:
        reason = child.killed_for or ("mismatch" if code == EXIT_MISMATCH else "crash")
        if self._stopping:
            return
        self._restarts[reason] += 1
        if child.age > STEADY_SECONDS:
            self._delay = BACK_OFF[0]
        call = child.call
        if reason in {"crash", "deadline"} and call.running and call.call.startswith("nvmlEvent"):
            self._note_event_failure()
        if reason in {"crash", "mismatch"}:
            self._note_crash(child, code, reason)
        if reason in {"crash", "mismatch"} or (reason == "deadline" and call.running and not call.bus_id):
            self._restart(self._delay)
            self._delay = min(2 * self._delay, BACK_OFF[1])
        else:
            self._restart(0.0)

    def _note_event_failure(self) -> None:
        self._event_failures += 1
        if self._event_failures == MOST_EVENT_FAILURES:
            log.error("asking for events hangs or crashes; going on without: no Xid is seen until the agent restarts")

    def _note_crash(self, child: SamplerChild, code: int, reason: str) -> None:
        call = child.call
        log.error(
            "the sampler ended",
            extra={"reason": reason, "code": code, "call": call.call, "bus_id": call.bus_id, "restart_in": self._delay},
        )
        if reason == "crash" and call.running and call.bus_id:
            self._crashes[call.bus_id] += 1
            if self._crashes[call.bus_id] >= CRASHES_A_GPU:
                self._leave_aside(call.bus_id, "unknown", f"the driver library crashes in {call.call}")

    def _was_abandoned(self, child: SamplerChild) -> None:
        log.error("SIGKILL does not end this child: it sits in the driver", extra={"child": child.name})
        self._abandoned.append(child)
        if child is self._trial:
            self._trial_ended(child)
        elif child is self._sampler:
            self._sampler = None
            self._restarts[child.killed_for if child.killed_for in REASONS else "deadline"] += 1
            self._restart(0.0)

    # How they start

    def _restart(self, delay: float) -> None:
        if len(self._abandoned) >= MOST_ABANDONED:
            log.error("too many children cannot be ended; no sampler for now", extra={"retry_in": GAVE_UP_SECONDS})
            delay = GAVE_UP_SECONDS
        if self._starting is not None:
            self._starting.cancel()
        self._starting = self._loop.call_after(delay, self._start)

    def _start(self) -> None:
        self._starting = None
        if self._sampler is None and not self._stopping and NODE not in self._released:
            self._sampler = self._child(self._sampler_orders, self._message)
            if self._sampler is None:
                self._restart(self._delay)
                self._delay = min(2 * self._delay, BACK_OFF[1])

    def _sampler_orders(self, page: int) -> SamplerOrders:
        """Begin with what answered last; every other time from the other end, so that many stuck GPUs hide none."""
        self._turns += 1
        first = tuple(reversed(self._answering))[:: 1 if self._turns % 2 else -1]
        return replace(
            self._orders(page),
            leave_aside=(*self._stuck, *self._released),
            first=first,
            events=self._event_failures < MOST_EVENT_FAILURES,
            watch=self._watching,
        )

    def _child(
        self, orders: Callable[[int], SamplerOrders], on_message: Callable[[ChildMessage], None]
    ) -> SamplerChild | None:
        try:
            return SamplerChild(
                self._loop, orders, on_message=on_message, on_end=self._ended, on_abandoned=self._was_abandoned
            )
        except OSError as error:  # no process, no memory, no interpreter: this too may pass
            log.error("no child can be started; trying again", extra={"error": str(error), "in": self._delay})  # noqa: TRY400
            return None

    def _tell(self) -> None:
        sampler = self._sampler
        now = SamplerStatus(
            stuck_seconds=sampler.lateness.seconds if sampler is not None and sampler.call.running else 0.0,
            aside={bus_id: stuck.aside for bus_id, stuck in self._stuck.items()},
            restarts=dict(self._restarts),
            abandoned=tuple(child.name for child in self._abandoned),
            gave_up=sampler is None and len(self._abandoned) >= MOST_ABANDONED,
            driver_calls=self._past_calls
            + sum(child.call.calls for child in (sampler, self._trial, *self._abandoned) if child is not None),
        )
        if now != self._told:
            self._told = now
            self._on_state(now)


def _may_hold(child: SamplerChild, released: frozenset[str]) -> bool:
    """A sampler may have every GPU open that it was not told to leave aside."""
    if NODE in released:
        return True
    trial = child.orders.trial
    return trial in released if trial is not None else bool(released.difference(child.orders.leave_aside))
