"""Simulates the files of /proc for processes that hold GPUs and are stuck in a system call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpumon_sim import shapes
from gpumon_sim.nic_files import Text

FIRST_PID = 1_900_000
NVIDIA = 195
"""Major number of the GPUs' device nodes."""
_CONTROL = 255
"""Minor number of /dev/nvidiactl."""
_PROCESSES = {"fabric_manager": "nv-fabricmanager", "imex": "nvidia-imex"}
"""Process name of each service, by name of the service in the scenario."""
_UNUSED_FIELDS = "0 0 0 0 4194304 0 0 0 0 0 0 0 0 20 0 1 0 1000"
"""Fields of /proc/PID/stat, from the process group to the start time, with arbitrary values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """An entry of a scenario's `stuck_processes`: a process that holds GPUs and is stuck in the kernel for some time.

    `since` and `until` are seconds since the simulation began.
    """

    gpus: tuple[int, ...] = ()
    since: float = 0.0
    until: float = float("inf")
    waits_in: str = "driver"
    """Place in the kernel where the process waits, as a key of _STACKS."""


_STACKS = {
    "driver": "[<0>] down_write+0x5c/0x80\n[<0>] os_acquire_rwlock_write+0x3c/0x70 [nvidia]",
    "lustre": "[<0>] ptlrpc_set_wait+0x480/0x790 [ptlrpc]\n[<0>] ll_xattr_list+0x240/0x670 [lustre]",
    "unreadable": None,
}
"""Kernel stack of a stuck process, by value of `waits_in`. driver: a deadlock in driver 580 (open-gpu-kernel-modules
issue 968). lustre: a server that does not answer (cea-hpc/robinhood issue 111). unreadable: no stack, as for an agent
that may not read stacks.
"""
_TIME = shapes.number(0, 1e12, "seconds after the epoch")
_STUCK = shapes.fields(
    {
        "gpus": shapes.listing(shapes.whole(0, 1023, "index")),
        "since": _TIME,
        "until": _TIME,
        "waits_in": shapes.one_of(*_STACKS),
    },
)


def entry(value: Any, path: shapes.Path) -> Stuck:
    return Stuck(**_STUCK(value, path))


def files(processes: tuple[Stuck, ...], now: Callable[[], float]) -> Iterator[tuple[str, Text]]:
    """Yield (path below the host's root, content) for each file of these processes in /proc.

    Process 1, proc/devices and the agent's PID namespace are added. The processes always exist; their state is D
    (uninterruptible sleep) while they are stuck, otherwise S.
    """
    yield "proc/self/ns/pid", "pid:[4026531836]"  # the first namespace: not a container
    yield "proc/1/stat", f"1 (systemd) S 0 {_UNUSED_FIELDS}"
    yield "proc/devices", f"Character devices:\n  1 mem\n{NVIDIA} nvidia-frontend"
    for n, process in enumerate(processes):
        folder = f"proc/{FIRST_PID + n}"
        for place in (folder, f"{folder}/task/{FIRST_PID + n}"):
            yield f"{place}/stat", _stat(FIRST_PID + n, process, now)
            if (stack := _STACKS[process.waits_in]) is not None:
                yield f"{place}/stack", stack
        devices = ("/dev/null", "/dev/nvidiactl", *(f"/dev/nvidia{gpu}" for gpu in process.gpus))
        for number, device_node in enumerate(devices):
            yield f"{folder}/task/{FIRST_PID + n}/fd/{number}", device_node


def service(name: str) -> Iterator[tuple[str, str]]:
    """Yield (path, content) for the /proc files of a service's process, run by root."""
    pid, process = FIRST_PID - 1, _PROCESSES[name][:15]
    yield f"proc/{pid}/stat", f"{pid} ({process}) S 1 {_UNUSED_FIELDS}"
    yield f"proc/{pid}/status", f"Name:\t{process}\nUid:\t0\t0\t0\t0"


def device(target: str) -> tuple[int, int] | None:
    """Return the major and minor numbers of an NVIDIA device node, such as /dev/nvidia0; None for any other path."""
    name = target.removeprefix("/dev/nvidia")
    return None if name == target else (NVIDIA, int(name) if name.isdecimal() else _CONTROL)


def _stat(pid: int, process: Stuck, now: Callable[[], float]) -> Callable[[], str]:
    return lambda: f"{pid} (python3) {'D' if process.since <= now() < process.until else 'S'} 1 {_UNUSED_FIELDS}"
