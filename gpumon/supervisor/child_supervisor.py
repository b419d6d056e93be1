"""Keeps one child of a kind running. Quarantines the subject whose calls hang or crash, and retries it by trials."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import ClassVar, Generic, TypeVar

from gpumon.collectors.lifecycle import PIDS
from gpumon.model.call_progress import CallInProgress
from gpumon.model.error_event import ErrorObservation
from gpumon.model.frame import Frame
from gpumon.model.orders import EXIT_MISMATCH, HostOrders, Orders
from gpumon.model.snapshot import HostStatus, TrialResult
from gpumon.supervisor.child import Child, ChildProgram
from gpumon.supervisor.deadlines import Deadlines
from gpumon.supervisor.loop import Loop, Timer
from gpumon.supervisor.quarantine import SubjectQuarantine

log = logging.getLogger("gpumon.supervisor")

OrdersT = TypeVar("OrdersT", bound=Orders)
StatusT = TypeVar("StatusT")

HOST = ChildProgram(
    name="host",
    module="gpumon.collectors.host",
    deadlines=Deadlines(
        call=10.0,  # a read may query a device's firmware, for which the kernel itself allows 60 s
        silence=60.0,
        gave_up=None,
        first_trial=60.0,
        early_trial=None,
        late_trial=600.0,
    ),
    max_abandoned=2,
    hang="reading {} does not return",
    capable=True,  # it reads files of other users, to find the processes that hold GPUs
)
"""The host child. The calls are reads of files."""
MAX_LISTED = 1024
"""Maximum number of processes of which the host child reads the owner: the request must fit into the pipe."""
RESTART_REASONS = ("deadline", "crash", "mismatch", "release", "readmit", "configuration")


class RestartDelay:
    """Delay before the restart after a crash. It doubles with each crash, up to `Deadlines.last_restart`."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self.seconds = deadlines.first_restart

    def take(self) -> float:
        """Return the delay, and double it for the next crash."""
        delay = self.seconds
        self.seconds = min(2 * delay, self._deadlines.last_restart)
        return delay

    def note_age(self, age: float) -> None:
        """Reset the delay if the ended child's `age` in seconds exceeds `steady`. Its end is then a new fault."""
        if age > self._deadlines.steady:
            self.seconds = self._deadlines.first_restart


class ChildSupervisor(ABC, Generic[OrdersT, StatusT]):
    """Keeps a child running, and starts trials: short-lived children that retry one quarantined subject.

    `orders`: configuration of the child. Its messages go to `on_message`, changes of its status to `on_state`. Use this
    class only from the loop's thread.
    """

    PROGRAM: ClassVar[ChildProgram]

    def __init__(
        self,
        loop: Loop,
        orders: OrdersT,
        *,
        on_message: Callable[[Frame], None],
        on_state: Callable[[StatusT], None],
        program: ChildProgram | None = None,
    ) -> None:
        self._loop = loop
        self._program = program = program or self.PROGRAM
        self._deadlines = program.deadlines
        self._orders = orders
        self._on_message = on_message
        self._on_state = on_state
        self._child: Child | None = None
        self._trial: Child | None = None
        self._living: list[Child] = []
        """All children that have not ended: the child, the trial and abandoned ones."""
        self._quarantine = SubjectQuarantine(program.deadlines, program.max_crashes)
        self._delay = RestartDelay(program.deadlines)
        self._timer: Timer | None = None
        self._restarts: Counter[str] = Counter(dict.fromkeys(RESTART_REASONS, 0))
        self._past_calls = 0
        """Number of calls of the children that have ended."""
        self._trouble = ""
        self._state: StatusT | None = None
        self._stopping = False

    def start(self) -> None:
        """Start the child, and inspect it and the trials periodically."""
        self._start()
        self._loop.every(self._deadlines.poll, self._inspect)

    def stop(self) -> None:
        """Kill the child and the running trial, and start no further children."""
        self._stopping = True
        for child in self._living:
            child.kill("stop")

    def apply(self, orders: OrdersT) -> None:
        """Use these orders for children that start later. Replace the child if more than the log level has changed."""
        before, self._orders = self._orders, orders
        if replace(before, log_level="") != replace(orders, log_level=""):
            self.replace("configuration")

    @property
    def running(self) -> bool:
        """Return True if a child is running that is not abandoned."""
        return self._child is not None or self._trial is not None

    @property
    def abandoned(self) -> tuple[Child, ...]:
        """Return the children that SIGKILL did not end in time and that still have not ended."""
        return tuple(child for child in self._living if child.abandoned)

    def replace(self, reason: str) -> None:
        """Kill the child, if one is running, and start a new one after its end. `reason`: one of RESTART_REASONS."""
        if self._child is not None:
            self._child.kill(reason)
        else:
            self._restart(0.0)

    # What a kind of children may add

    def _may_start(self) -> bool:
        return not self._stopping

    def _due_trial(self) -> str | None:
        """Return the quarantined subject to try now, if any."""
        return self._quarantine.due()

    def _next_orders(self) -> OrdersT:
        return replace(self._orders, quarantined=tuple(self._quarantine))

    def _note_message(self, message: Frame) -> None:  # noqa: ARG002 - subclasses read it
        """Note a message of the child, before `on_message` takes it: the child runs."""
        if self._trouble:
            self._trouble = ""
            self._publish_state()

    def _note_error(self, error: ErrorObservation) -> None:
        """Note an error that a child has observed."""

    def _note_hang(self, child: Child) -> None:
        """Note that the current call of the child is late."""

    def _count_end(self, reason: str, call: CallInProgress) -> None:
        """Count an end of the child, in this call."""
        self._restarts[reason] += 1
        if reason == "crash" and call.running and call.bus_id:
            self._quarantine.count_crash(call.bus_id, call.call)

    @abstractmethod
    def _status(self) -> StatusT: ...

    # While children run

    def _inspect(self) -> None:
        if self._stopping:
            return
        for child in (self._child, self._trial):
            if child is not None and child.killed_for is None:
                if child.is_late():
                    self._replace_late(child)
                elif child.is_silent():
                    log.error("child sends nothing; replacing it", extra={"child": child.name})
                    child.kill("deadline")
        if self._trial is None and not self.abandoned:
            self._start_trial()
        self._publish_state()

    def _replace_late(self, child: Child) -> None:
        call = child.call
        if child is self._child:
            self._note_hang(child)
            words = {"child": self._program.name, "call": call.call, "subject": call.bus_id}
            log.error("a call does not return; replacing the child", extra=words)
            if call.bus_id:
                self._quarantine.add(call.bus_id, "stuck", self._program.hang.format(call.call))
        child.kill("deadline")

    def _publish_state(self) -> None:
        state = self._status()
        if state != self._state:
            self._state = state
            self._on_state(state)

    # Trials

    def _start_trial(self) -> None:
        subject = self._due_trial()
        if subject is None:
            return
        others = tuple(other for other in self._quarantine if other != subject)
        orders = replace(self._orders, trial=subject, quarantined=others)
        try:
            self._trial = self._start_child(orders, self._take_trial_message)
        except OSError as error:
            log.error("cannot start a trial; retrying", extra={"error": str(error)})  # noqa: TRY400
            self._quarantine.postpone(subject)

    def _take_trial_message(self, message: Frame) -> None:
        if isinstance(message, TrialResult) and message.subject in self._quarantine:
            log.info("the subject answers again; ending its quarantine", extra={"subject": message.subject})
            self._quarantine.remove(message.subject)
            self.replace("readmit")

    def _end_trial(self, trial: Child) -> None:
        self._trial = None
        self._quarantine.postpone(trial.orders.trial or "")

    # Ends of children

    def _take_end(self, child: Child, code: int) -> None:
        self._past_calls += child.call.calls
        self._living.remove(child)
        if child.abandoned:
            log.info("an abandoned child has ended", extra={"child": child.name})
            self._restart(0.0)
        elif child is self._trial:
            self._end_trial(child)
        else:
            self._replace_ended(child, code)

    def _replace_ended(self, child: Child, code: int) -> None:
        self._child = None
        if self._stopping:
            return
        call, reason = child.call, child.killed_for or ("mismatch" if code == EXIT_MISMATCH else "crash")
        self._delay.note_age(child.age)
        self._count_end(reason, call)
        if reason in {"crash", "mismatch"}:
            self._trouble = f"the {self._program.name} child has ended; the log has the reason"
            words = {"child": self._program.name, "reason": reason, "code": code, "call": call.call}
            log.error("child ended", extra={**words, "subject": call.bus_id, "restart_in": self._delay.seconds})
        backs_off = reason in {"crash", "mismatch"} or (reason == "deadline" and call.running and not call.bus_id)
        self._restart(self._delay.take() if backs_off else 0.0)
        self._publish_state()

    def _take_abandonment(self, child: Child) -> None:
        log.error("SIGKILL does not end this child: it is blocked in the kernel", extra={"child": child.name})
        if child is self._trial:
            self._end_trial(child)
            return
        self._child = None
        self._count_end(child.killed_for if child.killed_for in RESTART_REASONS else "deadline", child.call)
        self._restart(0.0)
        self._publish_state()

    # Starts of children

    def _restart(self, delay: float) -> None:
        """Start the child after this delay, later if too many children are abandoned. Cancel any scheduled start."""
        if self._timer is not None:
            self._timer.cancel()
        if len(self.abandoned) >= self._program.max_abandoned:
            name, gave_up = self._program.name, self._deadlines.gave_up
            self._trouble = f"no {name} child is started, because SIGKILL does not end earlier ones: reboot the node"
            log.error("too many children cannot be killed; none is started", extra={"child": name, "retry_in": gave_up})
            if gave_up is None:
                return
            delay = gave_up
        self._timer = self._loop.call_after(delay, self._start)

    def _start(self) -> None:
        if self._child is not None or not self._may_start():
            return
        try:
            self._child = self._start_child(self._next_orders(), self._note_message, self._on_message)
        except OSError as error:  # no process, memory or interpreter, which may be temporary
            self._trouble = f"no child can be started: {error}"
            words = {"child": self._program.name, "error": str(error)}
            log.error("cannot start a child; retrying", extra=words)  # noqa: TRY400
            self._restart(self._delay.take())

    def _start_child(self, orders: Orders, *on_message: Callable[[Frame], None]) -> Child:
        child = Child(
            self._loop,
            self._program,
            orders,
            on_message=on_message,
            on_error=self._note_error,
            on_end=self._take_end,
            on_abandoned=self._take_abandonment,
        )
        self._living.append(child)
        return child


class HostSupervisor(ChildSupervisor[HostOrders, HostStatus]):
    """Keeps the host child running. The subjects are readers and devices."""

    PROGRAM = HOST
    _listed: tuple[int, ...] = ()

    def list_processes(self, pids: Collection[int]) -> None:
        """Let the child read who owns these processes, at most MAX_LISTED. It also applies to later children."""
        listed = tuple(sorted(pids)[:MAX_LISTED])
        if listed != self._listed:
            self._listed = listed
            if self._child is not None:
                self._child.send(self._request())

    def _request(self) -> bytes:
        return b" ".join((PIDS, *(str(pid).encode() for pid in self._listed)))

    def _start(self) -> None:
        super()._start()
        if self._child is not None and self._listed:
            self._child.send(self._request())

    def _status(self) -> HostStatus:
        return HostStatus(
            quarantined=self._quarantine.state(),
            abandoned=tuple(child.name for child in self.abandoned),
            trouble=self._trouble,
        )
