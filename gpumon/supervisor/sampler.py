"""One sampler or trial child: its frames, and the driver call it is in."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from gpumon import __version__
from gpumon.snapshot import call_page, frame
from gpumon.snapshot.call_page import InCall, boot_clock
from gpumon.snapshot.orders import Orders
from gpumon.snapshot.snapshot import Hello, Message, XidEvent
from gpumon.supervisor.child import Child, Command
from gpumon.supervisor.lateness import Lateness
from gpumon.supervisor.lines import Lines
from gpumon.supervisor.loop import Loop

log = logging.getLogger("gpumon.supervisor")

SILENCE_SECONDS = 90.0
"""Longest that a child may say nothing while in no driver call: three times its longest pause of its own."""


class SamplerChild:
    """Started on construction. Callbacks come from the loop; none comes after `on_end`, but for a late `on_end`."""

    def __init__(
        self,
        loop: Loop,
        orders: Callable[[int], Orders],
        *,
        on_message: Callable[[Message], None],
        on_end: Callable[[SamplerChild, int], None],
        on_abandoned: Callable[[SamplerChild], None],
    ) -> None:
        self.lateness = Lateness()
        self.killed_for: str | None = None
        self._on_message = on_message
        self._started_at = boot_clock()
        self._greeted = False
        lines = Lines(frame.LIMIT, self._line, lambda: self.kill("crash"))
        with call_page.created() as descriptor:
            self.orders = orders(descriptor)
            self._page = call_page.Reader(descriptor)
            self._child = Child(
                loop,
                Command(
                    name="trial" if self.orders.trial else "sampler",
                    arguments=(sys.executable, "-m", "gpumon.sampler"),
                    orders=self.orders.encode(),
                    descriptors=(descriptor,),
                    on_output=lines.feed,
                    on_exit=lambda code: on_end(self, code),
                    on_abandoned=lambda: on_abandoned(self),
                ),
            )

    @property
    def call(self) -> InCall:
        """The driver call it is in, or was in last."""
        return self._page.read()

    @property
    def name(self) -> str:
        """For people: what it is and which call it is in."""
        call = self.call
        return f"{self._child.command.name} {self._child.pid} in {call.call or 'no call'} on {call.bus_id or 'no GPU'}"

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return boot_clock() - self._started_at

    def is_late(self) -> bool:
        """Look at it: whether its current driver call has been seen not to return for too long."""
        return self.lateness.look(self.call, self._child.state(), boot_clock())

    def is_silent(self) -> bool:
        """In no driver call, and yet nothing was heard of it for long."""
        return self.lateness.idle_seconds > SILENCE_SECONDS

    def kill(self, reason: str) -> None:
        """SIGKILL; its end will be told with this reason."""
        if self.killed_for is None:
            self.killed_for = reason
            self._child.kill()

    def close_input(self) -> None:
        self._child.close_input()

    def _line(self, line: bytes) -> None:
        self.lateness.idle_seconds = 0.0
        try:
            message = frame.decode(line)
        except frame.FrameError as error:
            log.error("the sampler does not speak our language", extra={"error": str(error)})  # noqa: TRY400
            self.kill("crash")
            return
        if isinstance(message, Hello):
            self._greet(message)
        elif self._greeted and (self.killed_for is None or isinstance(message, XidEvent)):
            self._on_message(message)  # an Xid that was told before the end is true after it

    def _greet(self, hello: Hello) -> None:
        self._greeted = (hello.version, hello.schema) == (__version__, frame.SCHEMA)
        if not self._greeted:
            log.error(
                "the installed sampler is of another version: restart the daemon",
                extra={"daemon": __version__, "sampler": hello.version},
            )
            self.kill("mismatch")
