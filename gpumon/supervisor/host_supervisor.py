"""Keeps one host child running. A device whose files cannot be read in time is quarantined and later retried."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpumon.clock import boot_clock
from gpumon.model.frame import Frame
from gpumon.model.orders import HostOrders
from gpumon.model.snapshot import HostSnapshot
from gpumon.state.messages import HostStatus, Quarantine
from gpumon.supervisor.deadlines import HOST_DEADLINES, HostDeadlines
from gpumon.supervisor.framed_child import ChildProgram, FramedChild
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.restart_timer import RestartTimer

log = logging.getLogger("gpumon.supervisor")

MAX_ABANDONED = 2
"""While this many host children are abandoned, no other is started, because it might have to be abandoned too."""


@dataclass(frozen=True, slots=True)
class _QuarantinedDevice:
    quarantine: Quarantine
    pause: float
    retry_at: float
    waiting: bool = True
    """False while a child retries the device; True while the device waits for its next retry."""


class HostSupervisor:
    """Keeps the host child running, which reads ports, services, processes and schedulers.

    A device or collector whose files block the child is quarantined and retried later. `orders` gets the descriptor of
    a child's call page and returns its orders. Use this class only from the loop's thread.
    """

    def __init__(
        self,
        loop: Loop,
        orders: Callable[[int], HostOrders],
        *,
        on_snapshot: Callable[[HostSnapshot], None],
        on_state: Callable[[HostStatus], None],
        deadlines: HostDeadlines = HOST_DEADLINES,
    ) -> None:
        self._loop = loop
        self._orders = orders
        self._on_snapshot = on_snapshot
        self._on_state = on_state
        self._deadlines = deadlines
        self._child: FramedChild | None = None
        self._abandoned: list[FramedChild] = []
        self._quarantine: dict[str, _QuarantinedDevice] = {}
        """Quarantined devices and collectors by name."""
        self._restart_timer = RestartTimer(loop, deadlines, self._start)
        self._trouble = ""
        self._state = HostStatus()
        self._stopping = False

    def start(self) -> None:
        """Start the child, and inspect it periodically."""
        self._start()
        self._loop.every(self._deadlines.poll, self._inspect)

    def stop(self) -> None:
        """Kill the child, and start no further child."""
        self._stopping = True
        if self._child is not None:
            self._child.kill("stop")

    def apply(self, orders: Callable[[int], HostOrders]) -> None:
        """Use the function `orders` to create the orders (configuration) of all host children that start later.

        The running child keeps its orders.
        """
        self._orders = orders

    @property
    def running(self) -> bool:
        """Return True if a child is running that is not abandoned."""
        return self._child is not None

    # Inspection

    def _inspect(self) -> None:
        child = self._child
        if child is not None and child.killed_for is None and not self._stopping:
            if child.is_late():
                self._replace_late(child)
            elif child.is_silent():
                log.error("host child sends nothing; replacing it", extra={"child": child.name})
                child.kill("silence")
            elif self._retry_is_due():
                child.kill("readmit")
        self._publish_state()

    def _replace_late(self, child: FramedChild) -> None:
        call = child.call
        log.error(
            "a file does not answer; its device is quarantined", extra={"file": call.call, "subject": call.bus_id}
        )
        before = self._quarantine.get(call.bus_id)
        deadlines = self._deadlines
        pause = deadlines.first_retry if before is None else min(2 * before.pause, deadlines.last_retry)
        quarantine = Quarantine(fault="stuck", detail=f"reading {call.call} does not return", wall=time.time())
        if before is not None:
            quarantine = replace(quarantine, wall=before.quarantine.wall)
        self._quarantine[call.bus_id] = _QuarantinedDevice(quarantine, pause, boot_clock() + pause)
        child.kill("deadline")

    def _retry_is_due(self) -> bool:
        """Return True if a retry of a quarantined device is due and no abandoned child exists."""
        return not self._abandoned and any(
            device.waiting and device.retry_at <= boot_clock() for device in self._quarantine.values()
        )

    # Messages

    def _take_message(self, message: Frame) -> None:
        """Pass a snapshot to `on_snapshot`, and end the quarantine of each device that this child retries.

        The quarantine ends, because a child sends a snapshot only after its reads have returned.
        """
        if isinstance(message, HostSnapshot):
            self._trouble = ""
            for subject in [subject for subject, device in self._quarantine.items() if not device.waiting]:
                log.info("the files of the device answer again", extra={"subject": subject})
                del self._quarantine[subject]
            self._on_snapshot(message)
            self._publish_state()

    # Ends of children

    def _take_end(self, child: FramedChild, code: int) -> None:
        if child in self._abandoned:
            self._take_abandoned_end(child)
            return
        self._child = None
        if self._stopping:
            return
        self._restart_timer.note_age(child.age)
        if child.killed_for in {"readmit", "deadline"}:
            self._restart_timer.schedule(0.0)
            return
        delay = self._restart_timer.next_crash_delay()
        log.error("host child ended", extra={"code": code, "restart_in": delay})
        self._trouble = "the host child has ended; the log has the reason"
        self._restart_timer.schedule(delay)

    def _take_abandoned_end(self, child: FramedChild) -> None:
        log.warning("an abandoned child has ended", extra={"child": child.pid})
        self._abandoned.remove(child)
        if self._child is None and not self._stopping:
            self._restart_timer.schedule(0.0)

    def _take_abandonment(self, child: FramedChild) -> None:
        log.error("SIGKILL does not end this child: it is blocked in the kernel", extra={"child": child.name})
        self._abandoned.append(child)
        self._child = None
        if len(self._abandoned) < MAX_ABANDONED:
            self._restart_timer.schedule(0.0)
        else:
            self._trouble = "no host child is started, because SIGKILL does not end earlier ones: reboot the node"
        self._publish_state()

    # Starts of children

    def _start(self) -> None:
        if self._child is not None or self._stopping:
            return
        if not self._abandoned:
            self._mark_due_retries()
        try:
            self._child = self._start_child()
        except OSError as error:  # no process, memory or interpreter, which may be temporary
            self._trouble = f"no child can be started: {error}"
            delay = self._restart_timer.next_crash_delay()
            log.error("cannot start a host child; retrying", extra={"error": str(error), "retry_in": delay})  # noqa: TRY400
            self._restart_timer.schedule(delay)

    def _mark_due_retries(self) -> None:
        now = boot_clock()
        for subject, device in self._quarantine.items():
            self._quarantine[subject] = replace(device, waiting=device.retry_at > now)

    def _start_child(self) -> FramedChild:
        quarantined = tuple(subject for subject, device in self._quarantine.items() if device.waiting)
        child = FramedChild(
            self._loop,
            lambda page: ChildProgram(
                name="host",
                module="gpumon.collectors.host",
                capable=True,  # it reads files of other users, to find the processes that hold GPUs
                orders=replace(self._orders(page), quarantined=quarantined).encode(),
                deadline=lambda _: self._deadlines.read,
                deadlines=self._deadlines,
            ),
            on_message=self._take_message,
            on_end=lambda code: self._take_end(child, code),
            on_abandoned=lambda: self._take_abandonment(child),
        )
        return child

    def _publish_state(self) -> None:
        state = HostStatus(
            quarantined={subject: device.quarantine for subject, device in self._quarantine.items()},
            abandoned=tuple(child.name for child in self._abandoned),
            trouble=self._trouble,
        )
        if state != self._state:
            self._state = state
            self._on_state(state)
