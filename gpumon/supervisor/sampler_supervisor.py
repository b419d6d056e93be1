"""The supervisor of the sampler: with what only the driver has, such as releases, Xids and the order of the GPUs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone

from gpumon.clock import boot_clock
from gpumon.collectors.lifecycle import REST, WATCH
from gpumon.model.call_progress import CallInProgress
from gpumon.model.error_event import FIRMWARE_SILENT, ErrorObservation
from gpumon.model.frame import Frame
from gpumon.model.orders import INDEX_PREFIX, SamplerOrders
from gpumon.model.request import DeviceHolder
from gpumon.model.snapshot import SamplerStatus, Snapshot
from gpumon.model.time_window import NODE
from gpumon.supervisor.child import Child, ChildProgram
from gpumon.supervisor.child_supervisor import ChildSupervisor
from gpumon.supervisor.deadlines import Deadlines
from gpumon.supervisor.loop import Loop

log = logging.getLogger("gpumon.supervisor")

SAMPLER = ChildProgram(
    name="sampler", module="gpumon.collectors.sampler", deadlines=Deadlines(), max_abandoned=3, max_crashes=2
)
MAX_EVENT_FAILURES = 3
"""Number of hangs and crashes in the NVML event set after which the sampler reads the GPUs without events."""


class SamplerSupervisor(ChildSupervisor[SamplerOrders, SamplerStatus]):
    """Keeps a sampler running and starts the trials of quarantined GPUs. The subjects are GPUs, named by bus id."""

    PROGRAM = SAMPLER

    def __init__(
        self,
        loop: Loop,
        orders: SamplerOrders,
        *,
        on_message: Callable[[Frame], None],
        on_state: Callable[[SamplerStatus], None],
        on_error: Callable[[ErrorObservation], None] = lambda _: None,
        program: ChildProgram | None = None,
    ) -> None:
        """Create it, without a child. `on_error` is called with each Xid that a sampler reads from NVML."""
        super().__init__(loop, orders, on_message=on_message, on_state=on_state, program=program)
        self._on_error = on_error
        self._answering: dict[str, None] = {}
        """Bus ids of GPUs that answered in the last snapshot that has them, sorted by the time of that snapshot."""
        self._hang = ""
        self._starts = 0
        self._event_failures = 0
        self._released: frozenset[str] = frozenset()
        self._watching = False

    def watch(self, *, closely: bool) -> None:
        """Let the sampler read the processes on the GPUs at every poll if `closely`, else every 15 s.

        If `closely`, the sampler also polls at least every second, and reads peer access and the bytes moved by each
        NVLink. The setting also applies to samplers that start later.
        """
        if closely is not self._watching:
            self._watching = closely
            if self._child is not None:
                self._child.send(WATCH if closely else REST)

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
        ended = before - released
        self._quarantine.retry_now(tuple(self._quarantine) if NODE in ended else ended)
        if self._trial is not None and _may_hold(self._trial, released):
            self._trial.kill("release")
        if self._child is not None:
            self._child.shut_down("release")
        else:
            self._restart(0.0)

    def holders(self, released: frozenset[str]) -> tuple[DeviceHolder, ...]:
        """Return the children that may have one of the GPUs in `released` (bus ids, or NODE for all) open."""
        return tuple(
            DeviceHolder(pid=child.pid, description=child.name, stuck=child.abandoned)
            for child in self._living
            if _may_hold(child, released)
        )

    def _may_start(self) -> bool:
        return super()._may_start() and NODE not in self._released

    def _due_trial(self) -> str | None:
        return None if NODE in self._released else self._quarantine.due(without=self._released)

    def _next_orders(self) -> SamplerOrders:
        """Return the orders of the next sampler.

        It begins with the GPU that answered last. Every second sampler uses the reverse order, so that GPUs
        that hang do not prevent the reading of others.
        """
        self._starts += 1
        return replace(
            self._orders,
            quarantined=(*self._quarantine, *self._released),
            first=tuple(reversed(self._answering))[:: 1 if self._starts % 2 else -1],
            events=self._event_failures < MAX_EVENT_FAILURES,
            watch=self._watching,
        )

    def _note_message(self, message: Frame) -> None:
        super()._note_message(message)
        if isinstance(message, Snapshot):
            self._hang = ""
            for gpu in message.gpus:
                self._answering.pop(gpu.bus_id, None)
                if gpu.gpu is not None:
                    self._answering[gpu.bus_id] = None

    def _note_error(self, error: ErrorObservation) -> None:
        self._on_error(error)
        if error.bus_id:
            self.note_xid(error.bus_id, error.code)

    def _note_hang(self, child: Child) -> None:
        """Note the first call without an answer since the last snapshot: with its GPU, and when it began."""
        call = child.call
        if not self._hang:
            began = datetime.fromtimestamp(time.time() - (boot_clock() - call.since), timezone.utc)
            gpu = f" on {call.bus_id}" if call.bus_id else ""
            self._hang = (
                f"the driver call {call.call}{gpu} does not return (a hang since {began:%Y-%m-%d %H:%M:%S} UTC)"
            )

    def _count_end(self, reason: str, call: CallInProgress) -> None:
        super()._count_end(reason, call)
        if reason in {"crash", "deadline"} and call.running and call.call.startswith("nvmlEvent"):
            self._event_failures += 1
            if self._event_failures == MAX_EVENT_FAILURES:
                log.error("the NVML event set hangs or crashes; no Xid is read from NVML until the agent restarts")

    def _status(self) -> SamplerStatus:
        """Return the status. GPUs whose bus id could not be read are left out: the check gpu_count_mismatch fails."""
        child, abandoned = self._child, self.abandoned
        quarantined = self._quarantine.state().items()
        return SamplerStatus(
            stuck_seconds=child.waiting_seconds if child is not None and child.call.running else 0.0,
            quarantined={name: entry for name, entry in quarantined if not name.startswith(INDEX_PREFIX)},
            restarts=dict(self._restarts),
            abandoned=tuple(child.name for child in abandoned),
            gave_up=child is None and len(abandoned) >= self._program.max_abandoned,
            hang=self._hang,
            driver_calls=self._past_calls + sum(child.call.calls for child in self._living),
        )


def _may_hold(child: Child, released: frozenset[str]) -> bool:
    """Return True if the child may have one of the GPUs in `released` (bus ids, or NODE for all) open.

    A sampler may open every GPU that is not in `quarantined` of its orders. A trial opens one GPU only.
    """
    if NODE in released:
        return True
    trial = child.orders.trial
    return trial in released if trial is not None else bool(released.difference(child.orders.quarantined))
