"""Processes that lost their agent and live on: known by a variable of their environment, ended at the next start."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

log = logging.getLogger("gpumon.supervisor")

AGENT = "GPUMON_AGENT"
"""Variable of ranks and gates: the process that has started them, and when that process began."""
GPUS = "CUDA_VISIBLE_DEVICES"
"""Variable of ranks: their GPUs."""
RANK = "GPUMON_RANK"
"""Variable of ranks: which pass of its agent, a dot, and which rank of that."""
PROC = Path("/proc")


def mark() -> Mapping[str, str]:
    """What processes that this one starts carry, and what they start in turn."""
    return {AGENT: own_mark()}


def own_mark() -> str:
    """Of this process: a pid alone would be another's one day."""
    return f"{os.getpid()}-{began(PROC / 'self')}"


def is_other_and_lives(mark: str) -> bool:
    """Whether it is the mark of another process than this one, which is there still."""
    agent, _, then = mark.partition("-")
    return bool(then) and mark != own_mark() and _lives(agent, then)


def agent_of(process: Path) -> str:
    """Pid of the agent by its mark; empty for one that has none, or none that can be read."""
    return _mark(process).partition("-")[0]


def is_on_gpus(process: Path) -> bool:
    """Whether a rank was given any; those of a simulated node and of the CPU are not."""
    return bool(_variable(process, GPUS))


def is_of_own_pass(process: Path, number: int) -> bool:
    """Whether it is a rank of this pass of this agent, or was started by one."""
    return _variable(process, RANK).startswith(f"{number}.") and _mark(process) == own_mark()


def is_left_of_a_rank(process: Path) -> bool:
    """Whether it is a rank, or was started by one, and its agent is gone."""
    with contextlib.suppress(OSError):
        return bool(_variable(process, RANK)) and _is_orphan(process)
    return False


def end_orphans() -> threading.Thread:
    """Kill them. In a thread: to read the environment of a process that a driver holds up may take for ever."""
    thread = threading.Thread(target=_end_orphans, name="orphans", daemon=True)
    thread.start()
    return thread


def _end_orphans() -> None:
    for process in _orphans():
        with contextlib.suppress(OSError):  # it has ended, or belongs to somebody else by now
            if end(process, _is_orphan):
                log.warning("killed what an earlier agent has left", extra={"pid": int(process.name)})


def end(process: Path, is_meant: Callable[[Path], bool]) -> bool:
    """Kill it, if it is still the one that is meant. Raises OSError where it has ended or belongs to somebody else."""
    descriptor = os.pidfd_open(int(process.name))
    try:
        meant = is_meant(process)  # its pid cannot have another process while the descriptor is good
        if meant:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return meant
    finally:
        os.close(descriptor)


def _orphans() -> Iterator[Path]:
    """Of this user: nobody else's are ours."""
    for process in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == os.geteuid() and _is_orphan(process):
                yield process


def _is_orphan(process: Path) -> bool:
    """Whether its agent is gone. Pids of another namespace say nothing here."""
    agent, dash, then = _mark(process).partition("-")
    return bool(dash) and not _lives(agent, then) and _is_of_own(process, "pid")


def _lives(agent: str, then: str) -> bool:
    """Whether the process that began then is there still. By another clock than ours nobody can tell when one did."""
    now = began(PROC / agent)
    if now and now != then:
        with contextlib.suppress(OSError):  # another user's: no agent of ours
            return not _is_of_own(PROC / agent, "time")
    return now == then


def _mark(process: Path) -> str:
    return _variable(process, AGENT)


def _variable(process: Path, variable: str) -> str:
    """Of its environment; empty for one that has none, or none that can be read."""
    words = _read(process / "environ").split(b"\0")
    name = f"{variable}=".encode()
    return next((word.removeprefix(name).decode(errors="replace") for word in words if word.startswith(name)), "")


def began(process: Path) -> str:
    """When it did: clock ticks from boot; empty for one that is not there."""
    return next(iter(_read(process / "stat").rpartition(b")")[2].split()[19:20]), b"").decode()


def _is_of_own(process: Path, kind: str) -> bool:
    """Whether it is in this process's namespace of this kind. Raises OSError where that cannot be read."""
    own, other = PROC / "self" / "ns" / kind, process / "ns" / kind
    return not own.exists() or own.stat().st_ino == other.stat().st_ino


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
