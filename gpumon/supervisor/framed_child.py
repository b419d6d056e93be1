"""A child process that sends frames (one message per line) and shows its current call in a call page."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gpumon import __version__
from gpumon.clock import boot_clock
from gpumon.collectors.lifecycle import END
from gpumon.log import add_counts
from gpumon.model import call_progress, frame
from gpumon.model.call_progress import CallInProgress
from gpumon.model.error_event import ErrorObservation
from gpumon.model.snapshot import Hello, Logged
from gpumon.supervisor.child_process import PYTHON, ChildCommand, ChildProcess
from gpumon.supervisor.deadlines import Deadlines
from gpumon.supervisor.hang_detector import HangDetector
from gpumon.supervisor.line_splitter import LineSplitter
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.process_tree import stat

log = logging.getLogger("gpumon.supervisor")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProgram:
    """Program, orders and deadlines of a child, for FramedChild."""

    name: str
    module: str
    orders: bytes
    deadline: Callable[[CallInProgress], float]
    """Function that returns the seconds after which a call is late."""
    deadlines: Deadlines
    capable: bool = False
    """True if the child inherits the capabilities of the systemd unit."""
    descriptors: tuple[int, ...] = ()
    """Descriptors that the child inherits in addition to its call page."""


class FramedChild:
    """A child process that sends frames (one message per line). The constructor starts the child.

    The callbacks are called in the loop's thread: after `on_abandoned` only `on_end`, and `on_message` for Xids; after
    `on_end`, none. `on_end` gets the exit status or, if a signal ended the child, minus the number of the signal.
    """

    def __init__(
        self,
        loop: Loop,
        launch: Callable[[int], ChildProgram],
        *,
        on_message: Callable[[frame.Frame], None],
        on_end: Callable[[int], None],
        on_abandoned: Callable[[], None],
    ) -> None:
        """Start the child, or raise OSError. `launch` gets the descriptor of its call page and returns its program."""
        self.killed_for: str | None = None
        self._loop = loop
        self._on_message = on_message
        self._on_end = on_end
        self._started_at = boot_clock()
        self._greeted = False
        self._decoder = frame.Decoder()
        lines = LineSplitter(frame.LIMIT, self._take_line, lambda: self.kill("crash"))
        with call_progress.page_descriptor() as descriptor:
            self._program = launch(descriptor)
            self._hang_detector = HangDetector(self._program.deadline)
            self._page = call_progress.Reader(descriptor)
            self._child = ChildProcess(
                loop,
                ChildCommand(
                    name=self._program.name,
                    arguments=(*PYTHON, "-m", self._program.module),
                    orders=self._program.orders,
                    descriptors=(descriptor, *self._program.descriptors),
                    on_output=lines.feed,
                    on_exit=self._take_end,
                    on_abandoned=on_abandoned,
                    capable=self._program.capable,
                    patience=self._program.deadlines.kill,
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
        return self._child.pid

    @property
    def name(self) -> str:
        """Return name, process id and current (or last) call of the child, for logs and the operator."""
        return f"{self._program.name} {self.pid} in {self.call.call or 'no call'}"

    @property
    def age(self) -> float:
        """Return the seconds since the child was started."""
        return boot_clock() - self._started_at

    @property
    def abandoned(self) -> bool:
        """Return True if SIGKILL did not end the child in time, even if the child has ended since."""
        return self._child.abandoned

    def is_late(self) -> bool:
        """Inspect the child. Return True if it has been waiting in its call for at least the call's deadline."""
        state = "".join(stat(self.pid)[:1])
        return self._hang_detector.is_late(self.call, state, boot_clock())

    def is_silent(self) -> bool:
        """Return True if the child was stopped or in no call for `Deadlines.silence` since its last frame."""
        return self._hang_detector.idle_seconds > self._program.deadlines.silence

    def kill(self, reason: str) -> None:
        """Send SIGKILL to the child and set `killed_for` to `reason`.

        Do nothing if `kill` or `shut_down` was called before.
        """
        if self.killed_for is None:
            self.killed_for = reason
            self._child.kill()

    def shut_down(self, reason: str) -> None:
        """Send END, so that the child closes the driver and ends, and set `killed_for` to `reason`.

        Ignore further messages except Xids. Kill the child if it still runs after `Deadlines.grace`. Do nothing if
        `kill` or `shut_down` was called before.
        """
        if self.killed_for is None:
            self.killed_for = reason
            self.send(END)
            self._loop.call_after(self._program.deadlines.grace, self._child.kill)

    def send(self, word: bytes) -> None:
        """Write one of the requests defined in collectors/lifecycle.py to the child's standard input."""
        self._child.write(word + b"\n")

    def _take_end(self, code: int) -> None:
        self._page.close()
        self._on_end(code)

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
            self._greet(message)
        elif isinstance(message, Logged):
            add_counts(message.messages)
        elif self._greeted and (self.killed_for is None or isinstance(message, ErrorObservation)):
            self._on_message(message)  # an Xid that was sent before the child ended is still valid

    def _greet(self, hello: Hello) -> None:
        self._greeted = (hello.version, hello.schema) == (__version__, frame.SCHEMA)
        if not self._greeted:
            log.error(
                "the installed version differs from the running one: restart the daemon",
                extra={"daemon": __version__, "child": self.name, "installed": hello.version},
            )
            self.kill("mismatch")
