"""A child that speaks in frames: what it says, the call it is in, and whether that call returns."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass

from gpumon import __version__
from gpumon.clock import boot_clock
from gpumon.collectors.lifecycle import END
from gpumon.log import add as count_logged
from gpumon.model import call_progress, frame
from gpumon.model.call_progress import CallInProgress
from gpumon.model.snapshot import ChildMessage, Hello, Logged, XidEvent
from gpumon.supervisor.child_process import ChildCommand, ChildProcess
from gpumon.supervisor.hang_detector import HangDetector, deadline
from gpumon.supervisor.line_splitter import LineSplitter
from gpumon.supervisor.loop import Loop

log = logging.getLogger("gpumon.supervisor")

GRACE_SECONDS = 3.0
"""How long a child that was asked to end may take to give back what it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProgram:
    """What a child is, and what it is told."""

    name: str
    module: str
    orders: bytes
    silence: float
    """Longest in seconds that it may say nothing while in no call."""
    deadline: Callable[[CallInProgress], float] = deadline
    descriptors: tuple[int, ...] = ()
    """That it inherits besides its call page."""


class FramedChild:
    """Started on construction. Callbacks come from the loop; none comes after `on_end`, but for a late `on_end`."""

    def __init__(
        self,
        loop: Loop,
        launch: Callable[[int], ChildProgram],
        *,
        on_message: Callable[[ChildMessage], None],
        on_end: Callable[[int], None],
        on_abandoned: Callable[[], None],
    ) -> None:
        self.killed_for: str | None = None
        self._loop = loop
        self._on_message = on_message
        self._on_end = on_end
        self._started_at = boot_clock()
        self._greeted = False
        lines = LineSplitter(frame.LIMIT, self._line, lambda: self.kill("crash"))
        with call_progress.created() as descriptor:
            self._launch = launch(descriptor)
            self.lateness = HangDetector(self._launch.deadline)
            self._page = call_progress.Reader(descriptor)
            self._child = ChildProcess(
                loop,
                ChildCommand(
                    name=self._launch.name,
                    arguments=(sys.executable, "-m", self._launch.module),
                    orders=self._launch.orders,
                    descriptors=(descriptor, *self._launch.descriptors),
                    on_output=lines.feed,
                    on_exit=self._ended,
                    on_abandoned=on_abandoned,
                ),
            )

    @property
    def call(self) -> CallInProgress:
        """The call it is in, or was in last."""
        return self._page.read()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def name(self) -> str:
        """For people: what it is and which call it is in."""
        return f"{self._launch.name} {self.pid} in {self.call.call or 'no call'}"

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return boot_clock() - self._started_at

    def is_late(self) -> bool:
        """Look at it: whether its current call has been seen not to return for too long."""
        return self.lateness.look(self.call, self._child.state(), boot_clock())

    def is_silent(self) -> bool:
        """In no call, and yet nothing was heard of it for long."""
        return self.lateness.idle_seconds > self._launch.silence

    def kill(self, reason: str) -> None:
        """SIGKILL; its end will be told with this reason."""
        if self.killed_for is None:
            self.killed_for = reason
            self._child.kill()

    def let_go(self, reason: str) -> None:
        """Ask it to shut the driver down and to end, and no longer listen; SIGKILL when that takes too long."""
        if self.killed_for is None:
            self.killed_for = reason
            self._child.say(END)
            self._loop.call_after(GRACE_SECONDS, self._child.kill)

    def say(self, word: bytes) -> None:
        """One of life.WORDS."""
        self._child.say(word)

    @property
    def abandoned(self) -> bool:
        """SIGKILL did not end it."""
        return self._child.abandoned

    def close_input(self) -> None:
        self._child.close_input()

    def _ended(self, code: int) -> None:
        self._page.close()
        self._on_end(code)

    def _line(self, line: bytes) -> None:
        self.lateness.idle_seconds = 0.0
        try:
            message = frame.decode(line)
        except frame.FrameError as error:
            log.error("this child does not speak our language", extra={"child": self.name, "error": str(error)})  # noqa: TRY400
            self.kill("crash")
            return
        if isinstance(message, Hello):
            self._greet(message)
        elif isinstance(message, Logged):
            count_logged(message.messages)
        elif self._greeted and (self.killed_for is None or isinstance(message, XidEvent)):
            self._on_message(message)  # an Xid that was told before the end is true after it

    def _greet(self, hello: Hello) -> None:
        self._greeted = (hello.version, hello.schema) == (__version__, frame.SCHEMA)
        if not self._greeted:
            log.error(
                "what is installed is of another version: restart the daemon",
                extra={"daemon": __version__, "child": self.name, "installed": hello.version},
            )
            self.kill("mismatch")
