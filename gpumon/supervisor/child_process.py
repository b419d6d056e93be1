"""Starts, reads, ends and reaps one child process. Abandons it if it still runs some seconds after SIGKILL."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gpumon.supervisor.deadlines import Deadlines
from gpumon.supervisor.loop import Loop, Timer

PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE, PR_CAP_AMBIENT_CLEAR_ALL = 2, 4
_STATUS = Path("/proc/thread-self/status")


def clear_ambient() -> None:
    """Clear this thread's ambient capabilities, so that programs that it starts do not inherit them.

    The systemd unit grants them to the daemon, and only the host child may have them. A rank of a probe runs torch,
    perhaps from a network file system, and the scheduler gate an operator's program: with CAP_DAC_READ_SEARCH they
    could read every file of the host. Programs of root have all capabilities anyway, see capabilities(7).
    """
    ctypes.CDLL(None).prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)


@contextmanager
def ambient() -> Iterator[None]:
    """Let programs that this thread starts in the `with` block inherit the capabilities granted by the systemd unit."""
    sets = dict(line.split(":\t", 1) for line in _STATUS.read_text().splitlines() if line.startswith("Cap"))
    granted = int(sets["CapInh"], 16) & int(sets["CapPrm"], 16)
    for number in range(granted.bit_length()):
        if granted >> number & 1:
            ctypes.CDLL(None).prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, number, 0, 0)
    try:
        yield
    finally:
        clear_ambient()


PYTHON = (sys.executable, "-I")
"""Start of a child's command line. Without -I Python would import from the working directory, perhaps as root."""
REAP_INTERVAL = 0.2
"""Seconds between two attempts to reap a child on a kernel without pidfd."""

SMALL_ORDERS = 1 << 16
"""Number of bytes that every pipe holds."""
MAX_ORDERS = 1 << 20
"""Maximum number of bytes of orders: the size of the largest pipe of an unprivileged process."""

unreaped_pids: set[int] = set()
"""Process ids of the children that ChildProcess has started and not yet reaped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildCommand:
    """Command line (`arguments`), environment, inherited `descriptors`, time limits and callbacks of a child.

    The child runs in its own session and process group, so that ^C in a terminal does not reach it, and a signal to the
    group also reaches the processes that it has started, unless they have changed their group.
    """

    name: str
    arguments: Sequence[str]
    orders: bytes = b""
    """Bytes to write to the child's standard input. After that it stays open; the child ends when it is closed."""
    environment: Mapping[str, str] | None = None
    descriptors: Sequence[int] = ()
    outputs: Mapping[int, Callable[[bytes], None]] = field(default_factory=dict)
    """Callback for the data of each further pipe, by the descriptor of its read end, which ChildProcess closes."""
    on_started: Callable[[int], None] = lambda _: None
    """Called with the process id before the orders are written."""
    on_output: Callable[[bytes], None] = lambda _: None
    on_error_output: Callable[[bytes], None] | None = None
    """Callback for the data of standard error; None if the child inherits the daemon's standard error."""
    on_exit: Callable[[int], None] = lambda _: None
    """Called with the exit status or, if a signal ended the child, minus the number of the signal."""
    on_deadline: Callable[[], None] = lambda: None
    on_abandoned: Callable[[], None] = lambda: None
    capable: bool = False
    """True if the child inherits the capabilities of the systemd unit."""
    deadline: float | None = None
    """Seconds from the start until the child is stopped and `on_deadline` is called; None for no deadline."""
    ask: Callable[[ChildProcess], None] = lambda child: child.kill()
    """Function that asks the child to end when it is stopped. By default it is killed at once."""
    grace: float = 0.0
    """Seconds after `ask` until SIGKILL."""
    patience: float = Deadlines().kill
    """Seconds after SIGKILL until the child counts as abandoned."""


class LineSplitter:
    """Calls `on_line` with each line of a child's output, without its newline.

    A line over `limit` bytes is dropped, and `on_too_long` is called: a faulty child cannot fill the daemon's memory.
    """

    def __init__(self, limit: int, on_line: Callable[[bytes], None], on_too_long: Callable[[], None]) -> None:
        self._limit = limit
        self._on_line = on_line
        self._on_too_long = on_too_long
        self._rest = b""
        self._dropping = False
        """True while the rest of a line that is too long is dropped."""

    def feed(self, received: bytes) -> None:
        """Split the bytes that were read from the child's pipe. An incomplete last line is kept for the next call."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            if len(line) > self._limit and not self._dropping:
                self._on_too_long()
            elif not self._dropping:
                self._on_line(line)
            self._dropping = False
        if len(self._rest) > self._limit and not self._dropping:
            self._dropping = True
            self._on_too_long()
        if self._dropping:
            self._rest = b""


class ChildProcess:
    """A child process, which the constructor starts. Use this object only from the loop's thread.

    That thread must outlive the child: when it ends, the kernel kills those of its children that have set PDEATHSIG.
    """

    def __init__(self, loop: Loop, command: ChildCommand) -> None:
        self._loop = loop
        self.command = command
        self.abandoned = False
        self.ended = False
        self._stopping = self._killed = False
        self._timer: Timer | None = None
        """Timer of the next step: stop at the deadline, SIGKILL after `grace`, or abandonment after `patience`."""
        self._end: int | None = None
        """pidfd of the process, readable when the process has ended; None without pidfd."""
        with ambient() if command.capable else contextlib.nullcontext():
            self._process = subprocess.Popen(
                command.arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if command.on_error_output is None else subprocess.PIPE,
                env=None if command.environment is None else dict(command.environment),
                pass_fds=tuple(command.descriptors),
                start_new_session=True,
                bufsize=0,
                pipesize=MAX_ORDERS if len(command.orders) > SMALL_ORDERS else -1,
            )
        unreaped_pids.add(self.pid)
        assert self._process.stdin is not None  # noqa: S101 - requested above
        assert self._process.stdout is not None  # noqa: S101
        self._input = self._process.stdin
        self._consumers = {**command.outputs, self._process.stdout.fileno(): command.on_output}
        """Callback for the data of each pipe from the child, by the descriptor of its read end."""
        if self._process.stderr is not None and command.on_error_output is not None:
            self._consumers[self._process.stderr.fileno()] = command.on_error_output
        for descriptor in self._consumers:
            os.set_blocking(descriptor, False)
            loop.watch(descriptor, partial(self._read, descriptor))
        command.on_started(self.pid)
        self.write(command.orders)
        try:
            self._end = os.pidfd_open(self.pid)
        except OSError:  # a kernel before 5.3
            loop.call_after(REAP_INTERVAL, self._reap)
        else:
            loop.watch(self._end, self._reap)
        if command.deadline is not None:
            self._schedule(command.deadline, self._time_out)

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """Ask the child to end, and kill it if it still runs `grace` seconds later."""
        if not self.ended and not self._stopping:
            self._stopping = True
            self._schedule(self.command.grace, self.kill)
            self.command.ask(self)

    def kill(self) -> None:
        """Send SIGKILL to the child's group. If it does not end in time, `on_abandoned` is called."""
        if self.ended:
            return
        self._signal(signal.SIGKILL)
        if not self._killed:
            self._stopping = self._killed = True
            self._schedule(self.command.patience, self._abandon)

    def _schedule(self, seconds: float, step: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_after(seconds, step)

    def terminate(self) -> None:
        """Send SIGTERM to the child's process group: a function for `ChildCommand.ask`."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def write(self, line: bytes) -> None:
        """Write `line`, which ends with a newline, to the child's standard input. It must fit into the pipe."""
        if not self.ended:
            with contextlib.suppress(BrokenPipeError):  # the child has ended, and on_exit will be called
                self._input.write(line)

    def close_input(self) -> None:
        """Close the child's standard input. The child is expected to end then."""
        with contextlib.suppress(BrokenPipeError):
            self._input.close()

    def _read(self, descriptor: int) -> bool:
        """Pass the data that waits in a pipe to its callback. Return False if there is none."""
        try:
            data = os.read(descriptor, 1 << 20)
        except BlockingIOError:
            return False
        if data:
            self._consumers[descriptor](data)
        else:
            self._loop.unwatch(descriptor)
        return bool(data)

    def _reap(self) -> None:
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if self._end is None:
                self._loop.call_after(REAP_INTERVAL, self._reap)
            return
        # Kill what is left of its process group. The group id is not reused before the child is reaped.
        self._signal(signal.SIGKILL)
        code = self._process.wait()
        unreaped_pids.discard(self.pid)
        if self._end is not None:
            self._loop.unwatch(self._end)
            os.close(self._end)
        self.ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._drain()
        self.command.on_exit(code)

    def _drain(self) -> None:
        """Pass the remaining data of all pipes to the callbacks, and close the pipes."""
        for descriptor in self._consumers:
            while self._read(descriptor):
                pass
            self._loop.unwatch(descriptor)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        for descriptor in self.command.outputs:
            os.close(descriptor)

    def _time_out(self) -> None:
        self.stop()
        self.command.on_deadline()

    def _abandon(self) -> None:
        self.abandoned = True
        self.command.on_abandoned()
