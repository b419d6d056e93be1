"""One child process: started by exec, read without blocking, killed, reaped, abandoned if SIGKILL does not end it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpumon.supervisor.loop import Loop, Timer

KILL_PATIENCE = 2.0
"""Seconds after SIGKILL until a child counts as abandoned: it sits in the kernel, where no signal reaches it."""
REAP_INTERVAL = 0.2

running: set[int] = set()
"""Pids of all children of this process that have not been reaped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildCommand:
    """How a child is started. It gets its own session: a terminal's ^C spares it and a group kill takes all of it."""

    name: str
    arguments: Sequence[str]
    orders: bytes = b""
    """Written to its standard input, which then stays open: the child ends when it closes."""
    environment: Mapping[str, str] | None = None
    descriptors: Sequence[int] = ()
    outputs: Mapping[int, Callable[[bytes], None]] = field(default_factory=dict)
    """Reading ends of pipes and who takes what arrives on them, besides standard output."""
    on_started: Callable[[int], None] = lambda _: None
    """Is told its pid before it is given its orders."""
    on_output: Callable[[bytes], None] = lambda _: None
    on_error_output: Callable[[bytes], None] | None = None
    """None: the child's standard error is the daemon's own, the journal."""
    on_exit: Callable[[int], None] = lambda _: None
    on_abandoned: Callable[[], None] = lambda: None
    patience: float | None = None
    """Seconds after SIGKILL until it counts as abandoned; None: KILL_PATIENCE."""


class ChildProcess:
    """A running child. Use from the loop's thread, which must outlive it: PDEATHSIG fires when the thread ends."""

    def __init__(self, loop: Loop, command: ChildCommand) -> None:
        self._loop = loop
        self.command = command
        self.abandoned = False
        self.ended = False
        self._killing: Timer | None = None
        self._end: int | None = None
        """Descriptor of the process: readable when it has ended."""
        self._process = subprocess.Popen(
            command.arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if command.on_error_output is None else subprocess.PIPE,
            env=None if command.environment is None else dict(command.environment),
            pass_fds=tuple(command.descriptors),
            start_new_session=True,
            bufsize=0,
        )
        running.add(self.pid)
        self._open: set[int] = set()
        self._read(self._process.stdout, command.on_output)
        if command.on_error_output is not None:
            self._read(self._process.stderr, command.on_error_output)
        for descriptor, taker in command.outputs.items():
            self._watch(descriptor, taker)
        command.on_started(self.pid)
        self._give_orders()
        self._watch_for_end()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL to its whole group. Its exit, or its being abandoned, is told through the command's callbacks."""
        if self.ended:
            return
        self._signal(signal.SIGKILL)
        if self._killing is None:
            patience = KILL_PATIENCE if self.command.patience is None else self.command.patience
            self._killing = self._loop.call_after(patience, self._abandon)

    def terminate(self) -> None:
        """SIGTERM to its whole group."""
        if not self.ended:
            self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def say(self, word: bytes) -> None:
        """One of life.WORDS, to a child that always reads its input."""
        self.tell(word + b"\n")

    def tell(self, line: bytes) -> None:
        """Write on its input: a line for which the pipe has room."""
        if self._process.stdin is not None and not self.ended:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(line)

    def close_input(self) -> None:
        """Make it end at once: children end when their input closes."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def state(self) -> str:
        """Letter of its main thread in /proc/<pid>/stat: R running, S sleeping, D in the kernel, T stopped, Z ended."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return "X"
        return text.rpartition(")")[2].split()[0]

    def _give_orders(self) -> None:
        assert self._process.stdin is not None  # noqa: S101 - asked for above
        with contextlib.suppress(BrokenPipeError):  # it died at once; its exit will be told
            self._process.stdin.write(self.command.orders)

    def _read(self, stream: object, taker: Callable[[bytes], None]) -> None:
        assert hasattr(stream, "fileno")  # noqa: S101 - asked for above
        self._watch(stream.fileno(), taker)

    def _watch(self, descriptor: int, taker: Callable[[bytes], None]) -> None:
        os.set_blocking(descriptor, False)
        self._open.add(descriptor)
        self._loop.watch(descriptor, lambda: self._take(descriptor, taker))

    def _take(self, descriptor: int, taker: Callable[[bytes], None]) -> None:
        try:
            data = os.read(descriptor, 1 << 20)
        except BlockingIOError:
            return
        if data:
            taker(data)
        else:
            self._unwatch(descriptor)

    def _unwatch(self, descriptor: int) -> None:
        if descriptor in self._open:
            self._open.discard(descriptor)
            self._loop.unwatch(descriptor)

    def _watch_for_end(self) -> None:
        try:
            self._end = os.pidfd_open(self.pid)
        except OSError:  # a kernel before 5.3
            self._reap_later()
        else:
            self._loop.watch(self._end, self._reap)

    def _reap_later(self) -> None:
        self._loop.call_after(REAP_INTERVAL, self._reap)

    def _reap(self) -> None:
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if self._end is None:
                self._reap_later()
            return
        self._signal(signal.SIGKILL)  # what it left: until it is reaped, no other group can have its number
        code = self._process.wait()
        running.discard(self.pid)
        if self._end is not None:
            self._loop.unwatch(self._end)
            os.close(self._end)
        self.ended = True
        if self._killing is not None:
            self._killing.cancel()
        self._drain()
        self.command.on_exit(code)

    def _drain(self) -> None:
        takers = dict(self.command.outputs)
        if self._process.stdout is not None:
            takers[self._process.stdout.fileno()] = self.command.on_output
        if self._process.stderr is not None and self.command.on_error_output is not None:
            takers[self._process.stderr.fileno()] = self.command.on_error_output
        for descriptor, taker in takers.items():
            while descriptor in self._open:
                before = descriptor in self._open
                try:
                    data = os.read(descriptor, 1 << 20)
                except BlockingIOError:
                    break
                if data and before:
                    taker(data)
                else:
                    self._unwatch(descriptor)
            self._unwatch(descriptor)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        for descriptor in self.command.outputs:
            os.close(descriptor)

    def _abandon(self) -> None:
        self.abandoned = True
        self.command.on_abandoned()
