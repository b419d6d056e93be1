"""A child process that sends frames (one message per line) and shows its current call in a call page."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpumon import __version__
from gpumon.clock import boot_clock
from gpumon.collectors.lifecycle import END
from gpumon.log import add_counts
from gpumon.model import call_progress, frame
from gpumon.model.call_progress import CallInProgress
from gpumon.model.error_event import ErrorObservation
from gpumon.model.orders import Orders
from gpumon.model.snapshot import Hello, Logged
from gpumon.supervisor.child_process import PYTHON, ChildCommand, ChildProcess, LineSplitter
from gpumon.supervisor.deadlines import Deadlines
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.process_tree import stat

log = logging.getLogger("gpumon.supervisor")

WAITING = frozenset("SD")
"""States of a waiting process. Such a process is neither runnable (R) nor stopped (T)."""
STOPPED = "T"
"""Process state after a stop signal. Calls of a stopped child do not become late; it is replaced as silent."""
MAX_STEP_SECONDS = 1.0
"""Maximum seconds that one inspection adds to a waiting time. If more time has passed, the daemon itself was paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProgram:
    """A kind of children: the program, its deadlines, and what follows from a hang, a crash or an unkillable child."""

    name: str
    module: str
    deadlines: Deadlines
    max_abandoned: int
    """If this many children are abandoned, the next start is delayed by `Deadlines.gave_up`."""
    hang: str = "{} does not return"
    """Text about a call that hangs, whose subject is quarantined."""
    max_crashes: int | None = None
    """Number of crashes in calls on one subject after which it is quarantined; None for no quarantine after crashes."""
    capable: bool = False
    """True if the child inherits the capabilities of the systemd unit."""
    descriptors: tuple[int, ...] = ()
    """Descriptors that the child inherits in addition to its call page."""


class HangDetector:
    """Measures how long a child waits in its current call (`seconds`) and how long it is idle (`idle_seconds`).

    Only time in which the child was observed waiting in the call counts. Therefore a paused host, a stepped clock or a
    child without CPU time is not taken for a hung driver.
    """

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._sequence = 0
        self._inspected_at: float | None = None
        self.seconds = 0.0
        """Seconds for which the child was observed waiting in its current call."""
        self.idle_seconds = 0.0
        """Seconds for which the child was observed stopped, or waiting outside of calls. Child resets it at each frame.
        """

    def is_late(self, call: CallInProgress, state: str, now: float) -> bool:
        """Process one inspection of the child: its current or last `call`, its `state` in /proc/PID/stat, and the time.

        Return True if it has been waiting in `call` for at least the deadline.
        """
        elapsed = min(now - self._inspected_at, MAX_STEP_SECONDS) if self._inspected_at is not None else 0.0
        self._inspected_at = now
        if not call.running or call.sequence != self._sequence:
            self._sequence = call.sequence
            self.seconds = 0.0
        elif state in WAITING:
            self.seconds += elapsed
        if state == STOPPED or (not call.running and state in WAITING):
            self.idle_seconds += elapsed
        return self.seconds >= self._deadlines.of_call(call)


class Child:
    """A child process that sends frames (one message per line). The constructor starts it.

    The callbacks are called in the loop's thread: after `on_abandoned` only `on_end`, and `on_error` for Xids; after
    `on_end`, none. `on_end` gets the exit status or, if a signal ended the child, minus the number of the signal.
    """

    def __init__(
        self,
        loop: Loop,
        program: ChildProgram,
        orders: Orders,
        *,
        on_message: Sequence[Callable[[frame.Frame], None]],
        on_end: Callable[[Child, int], None],
        on_abandoned: Callable[[Child], None],
        on_error: Callable[[ErrorObservation], None] = lambda _: None,
    ) -> None:
        """Start the child, or raise OSError."""
        self.killed_for: str | None = None
        self._program = program
        self._on_message = on_message
        self._on_error = on_error
        self._on_end = on_end
        self._started_at = boot_clock()
        self._greeted = False
        self._decoder = frame.Decoder()
        self._hang_detector = HangDetector(program.deadlines)
        with call_progress.page_descriptor() as descriptor:
            self.orders = replace(orders, page=descriptor, parent=os.getpid())
            self._page = call_progress.Reader(descriptor)
            self._process = ChildProcess(
                loop,
                ChildCommand(
                    name=program.name,
                    arguments=(*PYTHON, "-m", program.module),
                    orders=self.orders.encode(),
                    descriptors=(descriptor, *program.descriptors),
                    on_output=LineSplitter(frame.LIMIT, self._take_line, lambda: self.kill("crash")).feed,
                    on_exit=self._take_end,
                    on_abandoned=lambda: on_abandoned(self),
                    capable=program.capable,
                    ask=lambda _: self.send(END),
                    grace=program.deadlines.grace,
                    patience=program.deadlines.kill,
                ),
            )

    @property
    def call(self) -> CallInProgress:
        """Return the current call of the child; if none is running, its last call, with `running` False."""
        return self._page.read()

    @property
    def waiting_seconds(self) -> float:
        """Return the seconds for which `is_late` has observed the child waiting in its current call."""
        return self._hang_detector.seconds

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def name(self) -> str:
        """Return name, process id, current (or last) call and its subject, for logs and the operator."""
        name, call = "trial" if self.orders.trial else self._program.name, self.call
        return f"{name} {self.pid} in {call.call or 'no call'}" + (f" on {call.bus_id}" if call.bus_id else "")

    @property
    def age(self) -> float:
        """Return the seconds since the child was started."""
        return boot_clock() - self._started_at

    @property
    def abandoned(self) -> bool:
        """Return True if SIGKILL did not end the child in time, even if the child has ended since."""
        return self._process.abandoned

    def is_late(self) -> bool:
        """Inspect the child. Return True if it has been waiting in its call for at least the call's deadline."""
        return self._hang_detector.is_late(self.call, "".join(stat(self.pid)[:1]), boot_clock())

    def is_silent(self) -> bool:
        """Return True if the child was stopped or in no call for `Deadlines.silence` since its last frame."""
        return self._hang_detector.idle_seconds > self._program.deadlines.silence

    def kill(self, reason: str) -> None:
        """Send SIGKILL and set `killed_for` to `reason`, unless `kill` or `shut_down` was called before."""
        if self.killed_for is None:
            self.killed_for = reason
            self._process.kill()

    def shut_down(self, reason: str) -> None:
        """Let the child close the driver and end within `Deadlines.grace`.

        Ignore its messages except Xids from now on.
        """
        if self.killed_for is None:
            self.killed_for = reason
            self._process.stop()

    def send(self, word: bytes) -> None:
        """Write one of the requests defined in collectors/lifecycle.py to the child's standard input."""
        self._process.write(word + b"\n")

    def _take_end(self, code: int) -> None:
        self._page.close()
        self._on_end(self, code)

    def _take_line(self, line: bytes) -> None:
        self._hang_detector.idle_seconds = 0.0
        try:
            message = self._decoder.decode(line)
        except frame.FrameError as error:
            words = {"child": self.name, "error": str(error)}
            log.error("child sent an invalid frame (protocol mismatch)", extra=words)  # noqa: TRY400
            self.kill("crash")
            return
        if isinstance(message, Hello):
            self._greeted = (message.version, message.schema) == (__version__, frame.SCHEMA)
            if not self._greeted:
                words = {"daemon": __version__, "child": self.name, "installed": message.version}
                log.error("the installed version differs from the running one: restart the daemon", extra=words)
                self.kill("mismatch")
        elif isinstance(message, Logged):
            add_counts(message.messages)
        elif self._greeted and isinstance(message, ErrorObservation):
            self._on_error(message)  # also if it was sent before the child was killed
        elif self._greeted and self.killed_for is None:
            for callback in self._on_message:
                callback(message)
