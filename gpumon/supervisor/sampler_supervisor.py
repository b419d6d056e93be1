"""Keeps one sampler running even if the driver hangs or crashes. Quarantines the GPU whose driver calls do that."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone

from gpumon.clock import boot_clock
from gpumon.collectors.lifecycle import REST, WATCH
from gpumon.model.call_progress import CallInProgress
from gpumon.model.error_event import FIRMWARE_SILENT, ErrorObservation
from gpumon.model.frame import Frame
from gpumon.model.orders import EXIT_MISMATCH, SamplerOrders
from gpumon.model.request_result import DeviceHolder
from gpumon.model.snapshot import Snapshot
from gpumon.model.time_window import NODE
from gpumon.state.messages import SamplerStatus
from gpumon.supervisor.deadlines import SAMPLER_DEADLINES, SamplerDeadlines
from gpumon.supervisor.gpu_quarantine import GpuQuarantine
from gpumon.supervisor.gpu_trials import GpuTrials
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.restart_timer import RestartTimer
from gpumon.supervisor.sampler_child import SamplerChild, call_deadline
from gpumon.supervisor.sampler_children import SamplerChildren

log = logging.getLogger("gpumon.supervisor")

MAX_ABANDONED = 3
"""If this many children are abandoned, the next start of a sampler is delayed by `SamplerDeadlines.gave_up`."""
MAX_EVENT_FAILURES = 3
"""Number of hangs and crashes in the NVML event set after which the sampler runs without events. It still reads the
GPUs.
"""
RESTART_REASONS = ("deadline", "crash", "mismatch", "release", "readmit", "configuration")


class SamplerSupervisor:
    """Keeps a sampler running and starts the trials of quarantined GPUs. Use this class only from the loop's thread.

    `orders` gets the descriptor of a child's call page and returns the orders (configuration) of a sampler.
    """

    def __init__(
        self,
        loop: Loop,
        orders: Callable[[int], SamplerOrders],
        *,
        on_message: Callable[[Frame], None],
        on_state: Callable[[SamplerStatus], None],
        deadlines: SamplerDeadlines = SAMPLER_DEADLINES,
    ) -> None:
        self._loop = loop
        self._orders = orders
        self._on_message = on_message
        self._on_state = on_state
        self._deadlines = deadlines
        self._sampler: SamplerChild | None = None
        self._children = SamplerChildren(loop, deadlines, on_abandoned_end=lambda: self._restart(0.0))
        self._quarantine = GpuQuarantine(deadlines)
        self._trials = GpuTrials(
            self._children,
            self._quarantine,
            lambda page: self._orders(page),  # noqa: PLW0108 - `apply` replaces them
            on_readmitted=lambda: self.replace("readmit"),
        )
        self._restart_timer = RestartTimer(loop, deadlines, self._start)
        self._restarts: Counter[str] = Counter(dict.fromkeys(RESTART_REASONS, 0))
        self._state: SamplerStatus | None = None
        self._answering: dict[str, None] = {}
        """Bus ids of GPUs, sorted by the time of the last snapshot that contains the GPU. GPUs that did not answer in
        that snapshot are left out.
        """
        self._hang = ""
        self._starts = 0
        self._event_failures = 0
        self._released: frozenset[str] = frozenset()
        self._watching = False
        self._stopping = False

    def start(self) -> None:
        """Start the sampler, and inspect it and the trials periodically."""
        self._start()
        self._loop.every(self._deadlines.poll, self._inspect)

    def stop(self) -> None:
        """Kill the sampler and the running trial, and start no further children."""
        self._stopping = True
        self._trials.stop()
        if self._sampler is not None:
            self._sampler.kill("stop")

    def apply(self, orders: Callable[[int], SamplerOrders]) -> None:
        """Create the orders (configuration) of children that start later with the function `orders`.

        Replace the running sampler if more than the log level has changed.
        """
        before, self._orders = self._orders, orders
        if replace(before(0), log_level="") != replace(orders(0), log_level=""):
            self.replace("configuration")

    @property
    def running(self) -> bool:
        """Return True if a sampler or trial is running that is not abandoned."""
        return self._sampler is not None or self._trials.running

    def replace(self, reason: str) -> None:
        """Kill the sampler, if one is running, and start a new one after its end. `reason`: one of RESTART_REASONS.

        The start is delayed while MAX_ABANDONED children are abandoned, and left out while NODE is released.
        """
        if self._sampler is not None:
            self._sampler.kill(reason)
        else:
            self._restart(0.0)

    def watch(self, *, closely: bool) -> None:
        """Let the sampler read the processes on the GPUs at every poll if `closely`, else every 15 s.

        If `closely`, the sampler also polls at least every second, and reads peer access and the bytes moved by each
        NVLink. The setting also applies to samplers that start later.
        """
        if closely is not self._watching:
            self._watching = closely
            if self._sampler is not None:
                self._sampler.send(WATCH if closely else REST)

    def note_xid(self, bus_id: str, xid: int) -> None:
        """Quarantine the GPU and replace the sampler, if this Xid shows that the GPU's firmware does not answer."""
        if xid in FIRMWARE_SILENT and bus_id not in self._quarantine:
            log.error("GPU firmware does not answer; GPU is quarantined", extra={"pci_bus_id": bus_id, "xid": xid})
            self._quarantine.add(bus_id, "stuck", f"Firmware silent since Xid {xid}")
            self._publish_state()
            self.replace("deadline")

    def release(self, released: frozenset[str]) -> None:
        """Replace the sampler by one that does not open the GPUs in `released`: the bus ids of all released GPUs.

        If `released` contains NODE, start no child. End a trial of a released GPU. Until the old children have ended,
        they may have a released GPU open, see `holders`. Retry quarantined GPUs that are no longer released.
        """
        before, self._released = self._released, released
        if before == released:
            return
        for bus_id in before - released:
            self._quarantine.retry_now(bus_id)
        self._trials.release(released)
        if self._sampler is not None:
            self._sampler.shut_down("release")
        else:
            self._restart(0.0)

    def holders(self, released: frozenset[str]) -> tuple[DeviceHolder, ...]:
        """Return the children that may have one of the GPUs in `released` (bus ids, or NODE for all) open."""
        return self._children.holders(released)

    # While the sampler runs

    def _inspect(self) -> None:
        if self._stopping:
            return
        sampler = self._sampler
        if sampler is not None and sampler.killed_for is None:
            late = sampler.is_late()
            self._note_hang(sampler)
            if late:
                self._replace_late(sampler)
            elif sampler.is_silent():
                log.error("sampler sends nothing; replacing it", extra={"child": sampler.name})
                sampler.kill("deadline")
        self._trials.inspect(self._released)
        self._publish_state()

    def _note_hang(self, sampler: SamplerChild) -> None:
        """Note the first call without an answer since the last snapshot: with its GPU, and when it began."""
        call = sampler.call
        if not self._hang and call.running and sampler.waiting_seconds >= call_deadline(call, self._deadlines):
            began = datetime.fromtimestamp(time.time() - (boot_clock() - call.since), timezone.utc)
            gpu = f" on {call.bus_id}" if call.bus_id else ""
            self._hang = (
                f"the driver call {call.call}{gpu} does not return (a hang since {began:%Y-%m-%d %H:%M:%S} UTC)"
            )

    def _replace_late(self, sampler: SamplerChild) -> None:
        call = sampler.call
        log.error(
            "a driver call does not return; replacing the sampler", extra={"call": call.call, "pci_bus_id": call.bus_id}
        )
        if call.bus_id:
            self._quarantine.add(call.bus_id, "stuck", f"{call.call} does not return")
        sampler.kill("deadline")

    def _take_message(self, message: Frame) -> None:
        self._on_message(message)
        if isinstance(message, Snapshot):
            self._hang = ""
            for gpu in message.gpus:
                self._answering.pop(gpu.bus_id, None)
                if gpu.gpu is not None:
                    self._answering[gpu.bus_id] = None
        if isinstance(message, ErrorObservation) and message.bus_id:
            self.note_xid(message.bus_id, message.code)

    # End of the sampler

    def _take_end(self, sampler: SamplerChild, code: int) -> None:
        self._sampler = None
        if self._stopping:
            return
        call, reason = sampler.call, sampler.killed_for or ("mismatch" if code == EXIT_MISMATCH else "crash")
        self._restart_timer.note_age(sampler.age)
        self._count_end(reason, call)
        if reason in {"crash", "mismatch"}:
            words = {"reason": reason, "code": code, "call": call.call, "pci_bus_id": call.bus_id}
            log.error("sampler ended", extra={**words, "restart_in": self._restart_timer.crash_delay})
        if reason == "crash" and call.running and call.bus_id:
            self._quarantine.count_crash(call.bus_id, call.call)
        backs_off = reason in {"crash", "mismatch"} or (reason == "deadline" and call.running and not call.bus_id)
        self._restart(self._restart_timer.next_crash_delay() if backs_off else 0.0)
        self._publish_state()

    def _take_abandonment(self, sampler: SamplerChild) -> None:
        self._sampler = None
        self._count_end(sampler.killed_for if sampler.killed_for in RESTART_REASONS else "deadline", sampler.call)
        self._restart(0.0)

    def _count_end(self, reason: str, call: CallInProgress) -> None:
        self._restarts[reason] += 1
        if reason in {"crash", "deadline"} and call.running and call.call.startswith("nvmlEvent"):
            self._event_failures += 1
            if self._event_failures == MAX_EVENT_FAILURES:
                log.error("the NVML event set hangs or crashes; no Xid is read from NVML until the agent restarts")

    # Start of the sampler

    def _restart(self, delay: float) -> None:
        if len(self._children.abandoned) >= MAX_ABANDONED:
            delay = self._deadlines.gave_up
            log.error("too many children cannot be killed; no sampler is started", extra={"retry_in": delay})
        self._restart_timer.schedule(delay)

    def _start(self) -> None:
        if self._sampler is not None or self._stopping or NODE in self._released:
            return
        self._sampler = self._children.start(
            self._sampler_orders,
            on_message=self._take_message,
            on_end=self._take_end,
            on_abandoned=self._take_abandonment,
        )
        if self._sampler is None:
            self._restart(self._restart_timer.next_crash_delay())

    def _sampler_orders(self, page: int) -> SamplerOrders:
        """Return the orders of the next sampler, with `page` as the descriptor of its call page.

        The sampler begins with the GPU that answered last. Every second sampler uses the reverse order, so that GPUs
        that hang do not prevent the reading of others.
        """
        self._starts += 1
        first = tuple(reversed(self._answering))[:: 1 if self._starts % 2 else -1]
        return replace(
            self._orders(page),
            do_not_open=(*self._quarantine, *self._released),
            first=first,
            events=self._event_failures < MAX_EVENT_FAILURES,
            watch=self._watching,
        )

    def _publish_state(self) -> None:
        sampler, abandoned = self._sampler, self._children.abandoned
        state = SamplerStatus(
            stuck_seconds=sampler.waiting_seconds if sampler is not None and sampler.call.running else 0.0,
            quarantined=self._quarantine.state(),
            restarts=dict(self._restarts),
            abandoned=tuple(child.name for child in abandoned),
            gave_up=sampler is None and len(abandoned) >= MAX_ABANDONED,
            hang=self._hang,
            driver_calls=self._children.driver_calls,
        )
        if state != self._state:
            self._state = state
            self._on_state(state)
