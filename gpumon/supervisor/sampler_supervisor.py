"""Keeps one sampler running whatever the driver does, and retries quarantined GPUs with short-lived trial children."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from gpumon.collectors.lifecycle import REST, WATCH
from gpumon.model.error_event import FIRMWARE_SILENT
from gpumon.model.orders import EXIT_MISMATCH, SamplerOrders
from gpumon.model.request_result import DeviceHolder
from gpumon.model.snapshot import ChildMessage, Snapshot, TrialResult, XidEvent
from gpumon.model.time_window import NODE
from gpumon.state.messages import SamplerStatus
from gpumon.supervisor.deadlines import SAMPLER_DEADLINES, SamplerDeadlines
from gpumon.supervisor.gpu_quarantine import GpuQuarantine
from gpumon.supervisor.loop import Loop, Timer
from gpumon.supervisor.sampler_child import SamplerChild

log = logging.getLogger("gpumon.supervisor")

MAX_ABANDONED = 3
"""Abandoned children from which on no sampler is started."""
MAX_EVENT_FAILURES = 3
"""Hangs and crashes inside the event set after which the sampler runs without events, to keep the readings."""
CRASHES_PER_GPU = 2
"""Crashes inside calls on one GPU after which that GPU is quarantined."""
RESTART_REASONS = ("deadline", "crash", "mismatch", "release", "readmit", "configuration")


class SamplerSupervisor:
    """Supervisor of the sampler and of the trials. Use it from the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        orders: Callable[[int], SamplerOrders],
        *,
        on_message: Callable[[ChildMessage], None],
        on_state: Callable[[SamplerStatus], None],
        deadlines: SamplerDeadlines = SAMPLER_DEADLINES,
    ) -> None:
        self._loop = loop
        self._orders = orders
        self._on_message = on_message
        self._on_state = on_state
        self._deadlines = deadlines
        self._quarantine = GpuQuarantine(deadlines)
        self._sampler: SamplerChild | None = None
        self._trial: SamplerChild | None = None
        self._abandoned: list[SamplerChild] = []
        self._restarts: Counter[str] = Counter(dict.fromkeys(RESTART_REASONS, 0))
        self._crashes: Counter[str] = Counter()
        """Crashes by bus id."""
        self._past_calls = 0
        """Driver calls of the children that have ended."""
        self._delay = deadlines.first_restart
        self._restart_timer: Timer | None = None
        self._state: SamplerStatus | None = None
        self._answering: dict[str, None] = {}
        """Bus ids that have answered, ordered by the time of their last answer."""
        self._starts = 0
        self._event_failures = 0
        self._released: frozenset[str] = frozenset()
        self._watching = False
        self._stopping = False

    def start(self) -> None:
        """Start a sampler and supervise it."""
        self._start()
        self._loop.every(self._deadlines.poll, self._inspect)

    def stop(self) -> None:
        """Kill all children and start no others."""
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
        """Whether a child is running that is not abandoned."""
        return self._sampler is not None or self._trial is not None

    def replace(self, reason: str) -> None:
        """Replace the sampler."""
        if self._sampler is not None:
            self._sampler.kill(reason)
        else:
            self._restart(0.0)

    def watch(self, *, closely: bool) -> None:
        """Read the processes on the GPUs at every poll, or only in the slow tier."""
        if closely is not self._watching:
            self._watching = closely
            if self._sampler is not None:
                self._sampler.send(WATCH if closely else REST)

    def note_xid(self, bus_id: str, xid: int) -> None:
        """Quarantine the GPU at once if this new Xid means that its firmware does not answer."""
        if xid in FIRMWARE_SILENT and bus_id not in self._quarantine:
            log.error("GPU firmware does not answer; GPU is quarantined", extra={"bus_id": bus_id, "xid": xid})
            self._add_to_quarantine(bus_id, "stuck", f"Firmware silent since Xid {xid}")
            self.replace("deadline")

    def release(self, released: frozenset[str]) -> None:
        """Close these GPUs and open only others from now on; with NODE, run no child. See `holders`."""
        before, self._released = self._released, released
        if before == released:
            return
        for bus_id in before - released:
            self._quarantine.retry_now(bus_id)
        if self._trial is not None and _may_hold(self._trial, released):
            self._trial.kill("release")
        if self._sampler is not None:
            self._sampler.shut_down("release")
        else:
            self._restart(0.0)

    def holders(self, released: frozenset[str]) -> tuple[DeviceHolder, ...]:
        """Return the children that may have one of these GPUs open."""
        return tuple(
            DeviceHolder(pid=child.pid, description=child.name, stuck=child.abandoned)
            for child in self._children()
            if _may_hold(child, released)
        )

    def _children(self) -> tuple[SamplerChild, ...]:
        return tuple(child for child in (self._sampler, self._trial, *self._abandoned) if child is not None)

    # Inspection

    def _inspect(self) -> None:
        if self._stopping:
            return
        sampler, trial = self._sampler, self._trial
        if sampler is not None and sampler.killed_for is None:
            if sampler.is_late():
                self._replace_late(sampler)
            elif sampler.is_silent():
                log.error("sampler sends nothing; replacing it", extra={"child": sampler.name})
                sampler.kill("deadline")
        if trial is not None and trial.killed_for is None and (trial.is_late() or trial.is_silent()):
            trial.kill("deadline")
        self._start_trial()
        self._publish_state()

    def _replace_late(self, child: SamplerChild) -> None:
        call = child.call
        log.error(
            "a driver call does not return; replacing the sampler", extra={"call": call.call, "bus_id": call.bus_id}
        )
        if call.bus_id:
            self._add_to_quarantine(call.bus_id, "stuck", f"{call.call} does not return")
        child.kill("deadline")

    def _add_to_quarantine(self, bus_id: str, fault: str, detail: str) -> None:
        self._quarantine.add(bus_id, fault, detail)
        self._publish_state()

    def _start_trial(self) -> None:
        """Start the trial that is due. None runs while an abandoned child lives."""
        if self._trial is not None or self._abandoned or NODE in self._released:
            return
        bus_id = self._quarantine.due(self._released)
        if bus_id is not None:
            self._trial = self._child(lambda page: replace(self._orders(page), trial=bus_id), self._take_trial_message)
            if self._trial is None:
                self._quarantine.postpone(bus_id)

    # Messages

    def _take_message(self, message: ChildMessage) -> None:
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

    def _take_trial_message(self, message: ChildMessage) -> None:
        if isinstance(message, TrialResult) and message.bus_id in self._quarantine:
            log.info("GPU answers again; readmitting it", extra={"bus_id": message.bus_id})
            self._quarantine.remove(message.bus_id)
            self._crashes.pop(message.bus_id, None)
            self.replace("readmit")
            self._publish_state()

    # Ends of children

    def _ended(self, child: SamplerChild, code: int) -> None:
        self._past_calls += child.call.calls
        if child in self._abandoned:
            log.info("an abandoned child has ended", extra={"child": child.name})
            self._abandoned.remove(child)
            if self._sampler is None:
                self._restart(0.0)
        elif child is self._trial:
            self._trial_ended(child)
        elif child is self._sampler:
            self._sampler = None
            if not self._stopping:
                self._sampler_ended(child, code)

    def _trial_ended(self, trial: SamplerChild) -> None:
        self._trial = None
        self._quarantine.postpone(trial.orders.trial or "")

    def _sampler_ended(self, child: SamplerChild, code: int) -> None:
        reason = child.killed_for or ("mismatch" if code == EXIT_MISMATCH else "crash")
        self._restarts[reason] += 1
        if child.age > self._deadlines.steady:
            self._delay = self._deadlines.first_restart
        call = child.call
        if reason in {"crash", "deadline"} and call.running and call.call.startswith("nvmlEvent"):
            self._count_event_failure()
        if reason in {"crash", "mismatch"}:
            self._count_crash(child, code, reason)
        if reason in {"crash", "mismatch"} or (reason == "deadline" and call.running and not call.bus_id):
            self._restart_later()
        else:
            self._restart(0.0)

    def _count_event_failure(self) -> None:
        self._event_failures += 1
        if self._event_failures == MAX_EVENT_FAILURES:
            log.error("the NVML event set hangs or crashes; no Xid is read from NVML until the agent restarts")

    def _count_crash(self, child: SamplerChild, code: int, reason: str) -> None:
        call = child.call
        log.error(
            "sampler ended",
            extra={"reason": reason, "code": code, "call": call.call, "bus_id": call.bus_id, "restart_in": self._delay},
        )
        if reason == "crash" and call.running and call.bus_id:
            self._crashes[call.bus_id] += 1
            if self._crashes[call.bus_id] >= CRASHES_PER_GPU:
                self._add_to_quarantine(call.bus_id, "unknown", f"the driver library crashes in {call.call}")

    def _was_abandoned(self, child: SamplerChild) -> None:
        log.error("SIGKILL does not end this child: it is blocked in the driver", extra={"child": child.name})
        self._abandoned.append(child)
        if child is self._trial:
            self._trial_ended(child)
        elif child is self._sampler:
            self._sampler = None
            self._restarts[child.killed_for if child.killed_for in RESTART_REASONS else "deadline"] += 1
            self._restart(0.0)

    # Starts of children

    def _restart(self, delay: float) -> None:
        if len(self._abandoned) >= MAX_ABANDONED:
            delay = self._deadlines.gave_up
            log.error("too many children cannot be killed; no sampler is started", extra={"retry_in": delay})
        if self._restart_timer is not None:
            self._restart_timer.cancel()
        self._restart_timer = self._loop.call_after(delay, self._start)

    def _restart_later(self) -> None:
        self._restart(self._delay)
        self._delay = min(2 * self._delay, self._deadlines.last_restart)

    def _start(self) -> None:
        self._restart_timer = None
        if self._sampler is None and not self._stopping and NODE not in self._released:
            self._sampler = self._child(self._sampler_orders, self._take_message)
            if self._sampler is None:
                self._restart_later()

    def _sampler_orders(self, page: int) -> SamplerOrders:
        """Begin with the GPU that answered last; every other start from the other end, so that stuck GPUs hide none."""
        self._starts += 1
        first = tuple(reversed(self._answering))[:: 1 if self._starts % 2 else -1]
        return replace(
            self._orders(page),
            do_not_open=(*self._quarantine, *self._released),
            first=first,
            events=self._event_failures < MAX_EVENT_FAILURES,
            watch=self._watching,
        )

    def _child(
        self, orders: Callable[[int], SamplerOrders], on_message: Callable[[ChildMessage], None]
    ) -> SamplerChild | None:
        try:
            return SamplerChild(
                self._loop,
                orders,
                self._deadlines,
                on_message=on_message,
                on_end=self._ended,
                on_abandoned=self._was_abandoned,
            )
        except OSError as error:  # no process, memory or interpreter: may be temporary
            log.error("cannot start a child; retrying", extra={"error": str(error), "retry_in": self._delay})  # noqa: TRY400
            return None

    def _publish_state(self) -> None:
        sampler = self._sampler
        state = SamplerStatus(
            stuck_seconds=sampler.waiting_seconds if sampler is not None and sampler.call.running else 0.0,
            quarantined=self._quarantine.state(),
            restarts=dict(self._restarts),
            abandoned=tuple(child.name for child in self._abandoned),
            gave_up=sampler is None and len(self._abandoned) >= MAX_ABANDONED,
            driver_calls=self._past_calls + sum(child.call.calls for child in self._children()),
        )
        if state != self._state:
            self._state = state
            self._on_state(state)


def _may_hold(child: SamplerChild, released: frozenset[str]) -> bool:
    """Return whether the child may have a released GPU open: a sampler opens every GPU that is not excluded."""
    if NODE in released:
        return True
    trial = child.orders.trial
    return trial in released if trial is not None else bool(released.difference(child.orders.do_not_open))
