"""Marks ranks and gate commands by an environment variable, so that the next agent can kill those that remain."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

log = logging.getLogger("gpumon.probe")

AGENT = "GPUMON_AGENT"
"""Environment variable of ranks and gate commands. Its value is `PID-STARTTIME` of the agent that started them."""
PROC = Path("/proc")


def process_names(pids: Iterable[int]) -> tuple[str, ...]:
    """Return the names and pids of the two processes with the lowest pids, each as a text such as `Xorg, pid 812`.

    A process that cannot be read in this PID namespace is left out.
    """
    names = list[str]()
    for pid in islice(sorted(pids), 2):
        with contextlib.suppress(OSError):
            names.append(f"{(PROC / str(pid) / 'comm').read_text(errors='replace').strip()}, pid {pid}")
    return tuple(names)


def environment() -> Mapping[str, str]:
    """Return the environment variable GPUMON_AGENT, which marks processes of this agent. Their children inherit it."""
    return {AGENT: own_mark()}


def own_mark() -> str:
    """Return `PID-STARTTIME` of this process. A pid alone may be reused."""
    return f"{os.getpid()}-{start_time(PROC / 'self')}"


def is_other_agent_alive(mark: str) -> bool:
    """Return whether another agent, whose mark is `PID-STARTTIME`, is alive."""
    agent, _, start = mark.partition("-")
    return bool(start) and mark != own_mark() and _is_alive(agent, start)


def end_orphans() -> threading.Thread:
    """Start a thread that kills ranks and gate commands of agents that have ended. Return the thread.

    A thread is used because reading the environment of a process that is blocked in a driver may never return.
    """
    thread = threading.Thread(target=_end_orphans, name="orphans", daemon=True)
    thread.start()
    return thread


def _end_orphans() -> None:
    for process in _orphans():
        with contextlib.suppress(OSError):  # it has ended, or its pid belongs to another user now
            if _kill_orphan(process):
                log.warning("killed a process of an earlier agent", extra={"pid": int(process.name)})


def _kill_orphan(process: Path) -> bool:
    """Kill the process if it is still an orphan. Return whether it was one.

    Raise OSError if the process has ended or belongs to another user.
    """
    descriptor = os.pidfd_open(int(process.name))
    try:
        orphan = _is_orphan(process)  # the pid cannot be reused while the descriptor is open
        if orphan:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return orphan
    finally:
        os.close(descriptor)


def _orphans() -> Iterator[Path]:
    """Yield the /proc folders of orphans (marked processes whose agent has ended) of this user."""
    for process in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == os.geteuid() and _is_orphan(process):
                yield process


def _is_orphan(process: Path) -> bool:
    """Return whether a process is marked and its agent has ended; False for a process of another PID namespace."""
    agent, dash, start = _variable(process, AGENT).partition("-")
    return bool(dash) and not _is_alive(agent, start) and _shares_namespace(process, "pid")


def _is_alive(agent: str, start: str) -> bool:
    """Return whether the process with this pid and start time is alive.

    A process of another time namespace counts as alive, because its start time cannot be compared.
    """
    current = start_time(PROC / agent)
    if current and current != start:
        with contextlib.suppress(OSError):  # a process of another user is no agent of ours
            return not _shares_namespace(PROC / agent, "time")
    return current == start


def _variable(process: Path, variable: str) -> str:
    """Return the value of a variable in the process's environment; empty if it is missing or cannot be read."""
    words = _read(process / "environ").split(b"\0")
    name = f"{variable}=".encode()
    return next((word.removeprefix(name).decode(errors="replace") for word in words if word.startswith(name)), "")


def start_time(process: Path) -> str:
    """Return the start time of a process (its /proc folder) in clock ticks since boot; empty if it has ended."""
    return next(iter(_read(process / "stat").rpartition(b")")[2].split()[19:20]), b"").decode()


def _shares_namespace(process: Path, kind: str) -> bool:
    """Return whether a process is in the same namespace as this process. Raise OSError if its namespace cannot be read.

    `kind`: type of the namespace, such as pid.
    """
    own, other = PROC / "self" / "ns" / kind, process / "ns" / kind
    return not own.exists() or own.stat().st_ino == other.stat().st_ino


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
