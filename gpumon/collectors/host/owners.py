"""Read who owns the GPUs: from the mapping files of a scheduler, from the kubelet, and from processes on the GPUs."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gpumon.collectors.host.cgroup import owner_of
from gpumon.collectors.host.job_mapping import read_mapping
from gpumon.collectors.host.pod_resources import PodReader, PodResources
from gpumon.collectors.host.reader import Turn, read_text
from gpumon.model.allocation import HolderProcess, Owner, OwnerReadings, clipped


class _Process(NamedTuple):
    """A process whose owner was read. A later process with the same id has another start time."""

    started: str
    owner: Owner
    io_file: str
    """Path of io.stat of its cgroup; empty without cgroup version 2."""


class OwnerReader:
    """Reads the owners. Keeps those of the processes that it has read, which do not change while a process runs."""

    def __init__(self) -> None:
        self._processes: dict[str, _Process] = {}
        self._pods: PodReader | None = None

    def __call__(self, turn: Turn) -> OwnerReadings:
        """Return what each source reports; None for a source that is not there or does not answer."""
        orders = turn.orders
        if self._pods is None:
            self._pods = PodReader(PodResources(Path(orders.root) / orders.kubelet_socket.lstrip("/")))
        mapped = read_mapping(turn, orders.mapping_directory) if orders.mapping_directory else None
        pods = self._pods(turn) if orders.kubelet_socket else None
        silent = (mapped is None and turn.errors.denied) or (pods is None and self._pods.silent)
        return OwnerReadings(mapped=mapped, pods=pods, processes=self._read_processes(turn), silent=silent)

    def _read_processes(self, turn: Turn) -> dict[str, HolderProcess]:
        """Return the processes on the GPUs that still run. The read of these files does not wait for the process."""
        users = _users(read_text(turn.root, "etc/passwd"))
        processes, kept = {}, {}
        for pid in turn.pids:
            # The name of the process, in parentheses, may have any characters.
            words = read_text(turn.root, f"proc/{pid}/stat").rpartition(")")[2].split()
            if len(words) < _STARTED:
                continue
            known = self._processes.get(pid)
            if known is None or known.started != words[_STARTED - 1]:
                known = _process(turn, pid, words[_STARTED - 1], users)
            kept[pid] = known
            processes[pid] = HolderProcess(
                owner=known.owner,
                state=words[0],
                cpu_seconds=sum(map(int, words[_CPU_TIMES])) / _TICKS,
                io_bytes=_io_bytes(read_text(turn.root, known.io_file)) if known.io_file else None,
            )
        self._processes = kept
        return processes


_STARTED, _CPU_TIMES = 20, slice(11, 13)
"""Positions in /proc/PID/stat, counted from the state, which follows the name: start, user time and system time."""
_TICKS = os.sysconf("SC_CLK_TCK")
_CGROUPS = "sys/fs/cgroup"


def _process(turn: Turn, pid: str, started: str, users: dict[str, str]) -> _Process:
    cgroups = read_text(turn.root, f"proc/{pid}/cgroup")
    owner, path = owner_of(cgroups), re.search(r"^0::(/\S+)$", cgroups, re.MULTILINE)
    uid = re.search(r"^Uid:\t(\d+)", read_text(turn.root, f"proc/{pid}/status"), re.MULTILINE)
    owner = replace(owner, user=clipped(users.get(uid[1], uid[1]))) if uid else owner
    return _Process(started, owner, f"{_CGROUPS}{path[1]}/io.stat" if path and ".." not in path[1] else "")


def _io_bytes(statistics: str) -> float | None:
    """Return the bytes in the content of an io.stat file; None if there is no such file."""
    counts = re.findall(r"\b[rw]bytes=(\d+)", statistics)
    return float(sum(map(int, counts))) if counts else None


_FIELDS = 7
"""Number of fields of a line of /etc/passwd; the last line that is read may be cut off."""


def _users(passwd: str) -> dict[str, str]:
    """Return the names of the host's own users by uid. A directory service is not asked, because it may hang."""
    rows = (line.split(":") for line in passwd.splitlines())
    return {row[2]: row[0] for row in rows if len(row) == _FIELDS}
