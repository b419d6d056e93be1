"""A host in virtual time. While it is entered, its clocks, selectors and processes are those of this process.

The operating system is replaced: `time`, `selectors.DefaultSelector`, `subprocess.Popen`, `os.killpg`,
`os.pidfd_open`, `os.waitid`, `signal.raise_signal`. Time passes only where a caller waits, and
then at once. A child is a thread that runs while the host waits for it: a killed child is not resumed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pynvml
from typing_extensions import Self

from gpumon import __version__
from gpumon.collectors.host.__main__ import poll_host
from gpumon.collectors.lifecycle import DaemonRequests, OrdersT, Work
from gpumon.collectors.sampler.__main__ import poll_node
from gpumon.model import frame
from gpumon.model.orders import HostOrders, SamplerOrders
from gpumon.model.snapshot import Hello

PIPE_BYTES = 1 << 20
"""Pipe size. A child writes whole frames before the daemon reads them."""
UPTIME = 86400.0
"""Seconds for which the host has run when the agent starts."""
WALL = 1.8e9
"""Seconds since the epoch when the host was first booted."""

Main = Callable[["VirtualProcess"], int]
"""Runs in place of the child's module, and returns the exit code."""
_REAL_SLEEP, _REAL_GETTIME = time.sleep, time.clock_gettime


class EndRequest(threading.Event):
    """An event that requests the end of a child; waits in virtual time."""

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            time.sleep(timeout or 0.0)
        return self.is_set()


class _Input:
    """Standard input of a child."""

    def __init__(self, process: VirtualProcess) -> None:
        self._process = process

    def write(self, line: bytes) -> None:
        self._process.receive(line)

    def close(self) -> None:
        self._process.end(-signal.SIGKILL)


class VirtualProcess:
    """A child process, with the part of Popen that the supervisor of children uses."""

    def __init__(self, host: VirtualHost, main: Main) -> None:
        self.requests = DaemonRequests(end=EndRequest())
        self.orders = b""
        self.wake_at = host.at
        self.error: BaseException | None = None
        self.stdin = _Input(self)
        self.stderr = None
        reading, self._writing = os.pipe()
        fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.stdout = os.fdopen(reading, "rb", buffering=0)
        self.ended, self._ending = os.pipe()
        self.page = -1
        """Descriptor of its call page."""
        self._host = host
        self._main = main
        self._code: int | None = None
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._driver: tuple[Any, dict[str, Any]] = (None, {})
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.pid = self._thread.native_id or 0

    def wait(self) -> int:
        """Return the exit code of a process that has ended."""
        if self._code is None:
            raise RuntimeError(f"{self.pid} has not ended")
        return self._code

    @property
    def alive(self) -> bool:
        return self._code is None

    def receive(self, line: bytes) -> None:
        """Receive the orders, and later requests."""
        if not self.orders:
            self.orders, self.page = line, os.dup(json.loads(line)["page"])  # the parent closes its own
        else:
            self.requests.take(line)
            self.wake_at = self._host.at

    def write(self, frame: bytes) -> None:
        """Write to standard output."""
        os.write(self._writing, frame)

    def end(self, code: int) -> None:
        """End the process, and close its pipes."""
        if self._code is None:
            self._code = code
            os.close(self._writing)
            os.close(self._ending)
            if self.page >= 0:
                os.close(self.page)
            self._host.forget(self)

    # In turns

    def resume(self) -> None:
        """Let it run until it waits. Called by the host's thread."""
        pynvml.nvmlLib, pynvml._nvmlGetFunctionPointer_cache = self._driver
        self._go.release()
        self._paused.acquire()
        self._driver = pynvml.nvmlLib, pynvml._nvmlGetFunctionPointer_cache
        if self.error is not None:
            raise self.error

    def wait_for(self, seconds: float) -> None:
        """Wait in virtual time. Called by its own thread."""
        self.wake_at = self._host.at + seconds
        self._paused.release()
        self._go.acquire()

    def die(self, code: int) -> None:
        """End the process. Called by its own thread, which does not continue."""
        self.end(code)
        self.wait_for(0.0)

    def _run(self) -> None:
        self._go.acquire()
        code = 1
        try:
            code = self._main(self)
        except BaseException as error:  # noqa: BLE001 - raised again in the host's thread
            self.error = error
        self.end(code)
        self._paused.release()


class _Selector(selectors.EpollSelector):
    """A selector that lets the host's time pass instead of waiting."""

    def __init__(self, host: VirtualHost) -> None:
        super().__init__()
        self._host = host

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout != 0:
            self._host.pass_time(timeout)
            ready = super().select(0)
        return ready


class VirtualHost:
    """A host in virtual time. Entered by one thread at a time."""

    def __init__(self) -> None:
        self.at = UPTIME
        """CLOCK_BOOTTIME."""
        self.booted = WALL
        """Seconds since the epoch."""
        self.stepped = 0.0
        """Steps of the wall clock, in seconds."""
        self.slept = 0.0
        """Seconds of suspension, during which CLOCK_MONOTONIC stopped."""
        self.late = 0.0
        """Seconds by which each child is resumed too late, as on a starved host."""
        self.unkillable = False
        """If True, SIGKILL does not end a child that is in a driver call."""
        self.settle: Callable[[], None] = lambda: None
        """Called before time passes, to wait for the work of real threads."""
        self.in_call: Callable[[VirtualProcess], bool] = lambda _: False
        self._processes: dict[int, VirtualProcess] = {}
        self._stack = contextlib.ExitStack()

    @property
    def wall(self) -> float:
        return self.booted + self.at + self.stepped

    def __enter__(self) -> Self:
        for owner, name, stand_in in self._stand_ins():
            self._stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, stand_in)
        self._stack.callback(setattr, pynvml, "_nvmlGetFunctionPointer_cache", pynvml._nvmlGetFunctionPointer_cache)
        self._stack.callback(setattr, pynvml, "nvmlLib", pynvml.nvmlLib)
        return self

    def __exit__(self, *_: object) -> None:
        for process in tuple(self._processes.values()):
            process.end(-signal.SIGKILL)
        self._stack.close()

    def _stand_ins(self) -> Iterator[tuple[Any, str, Any]]:
        yield time, "time", lambda: self.wall
        yield time, "time_ns", lambda: int(self.wall * 1e9)
        yield time, "monotonic", lambda: self.at - self.slept
        yield time, "clock_gettime", self._clock
        yield time, "sleep", self._sleep
        yield selectors, "DefaultSelector", lambda: _Selector(self)
        yield subprocess, "Popen", self._start
        yield os, "killpg", self._kill
        yield os, "waitid", lambda _kind, pid, _options: None if pid in self._processes else pid
        yield os, "pidfd_open", self._open
        yield signal, "raise_signal", self._raise

    def _clock(self, clock: int) -> float:
        return self.at if clock == time.CLOCK_BOOTTIME else _REAL_GETTIME(clock)

    def _sleep(self, seconds: float) -> None:
        own = self._running()
        if own is None:
            _REAL_SLEEP(min(seconds, 0.01))
        else:
            own.wait_for(seconds)

    def _running(self) -> VirtualProcess | None:
        return self._processes.get(threading.get_native_id())

    # Time

    def pass_time(self, seconds: float | None) -> None:
        """Let time pass until the next child is due, at most `seconds`."""
        self.settle()
        end = float("inf") if seconds is None else self.at + seconds
        first = min(self._processes.values(), key=lambda process: process.wake_at, default=None)
        if first is not None and first.wake_at + self.late <= end:
            self.at = max(self.at, first.wake_at + self.late)
            first.resume()
        else:
            self.at = end

    def suspend(self, seconds: float) -> None:
        """Suspend the whole host."""
        self.at += seconds
        self.slept += seconds

    def reboot(self) -> None:
        """Reset the boot clock. The caller has ended all processes."""
        self.booted += self.at + 120.0
        self.at, self.slept = 20.0, 0.0

    # Processes

    def _start(self, arguments: Sequence[str], **_: object) -> VirtualProcess:
        process = VirtualProcess(self, MAINS[arguments[-1]])
        self._processes[process.pid] = process
        return process

    def _open(self, pid: int) -> int:
        """Return a descriptor of a simulated process; processes of the real host do not exist here."""
        if pid not in self._processes:
            raise ProcessLookupError(pid)
        return os.dup(self._processes[pid].ended)

    def _kill(self, pid: int, number: int) -> None:
        process = self._processes.get(pid)
        if process is not None and not (self.unkillable and self.in_call(process)):
            process.end(-number)

    def _raise(self, number: int) -> None:
        own = self._running()
        if own is not None:
            own.die(-number)

    def forget(self, process: VirtualProcess) -> None:
        self._processes.pop(process.pid, None)

    @property
    def processes(self) -> tuple[VirtualProcess, ...]:
        return tuple(self._processes.values())


# Children


def _run(orders_type: type[OrdersT], work: Work[OrdersT], process: VirtualProcess) -> int:
    """Run a child without the parts that need a separate process: what else `lifecycle.run` does."""
    encoder = frame.Encoder()

    def send(*messages: frame.Frame) -> None:
        process.write(b"".join(map(encoder.encode, messages)))

    send(Hello(version=__version__, schema=frame.SCHEMA, pid=os.getpid()))
    return work(replace(orders_type.decode(process.orders), page=process.page), send, process.requests)


MAINS: Mapping[str, Main] = {
    "gpumon.collectors.sampler": partial(_run, SamplerOrders, poll_node),
    "gpumon.collectors.host": partial(_run, HostOrders, poll_host),
}
