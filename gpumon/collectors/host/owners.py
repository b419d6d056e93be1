"""Read who owns the GPUs: from the mapping files of a scheduler, from the kubelet, and from processes on the GPUs."""

from __future__ import annotations

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
        return OwnerReadings(
            mapped=read_mapping(turn, orders.mapping_directory) if orders.mapping_directory else None,
            pods=self._pods(turn) if orders.kubelet_socket else None,
            processes=self._read_processes(turn),
        )

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
                known = _Process(words[_STARTED - 1], _owner(turn, pid, users))
            kept[pid] = known
            processes[pid] = HolderProcess(owner=known.owner, state=words[0])
        self._processes = kept
        return processes


_STARTED = 20
"""Position of the start time in /proc/PID/stat, counted from the state, which follows the name."""


def _owner(turn: Turn, pid: str, users: dict[str, str]) -> Owner:
    owner = owner_of(read_text(turn.root, f"proc/{pid}/cgroup"))
    uid = re.search(r"^Uid:\t(\d+)", read_text(turn.root, f"proc/{pid}/status"), re.MULTILINE)
    return replace(owner, user=clipped(users.get(uid[1], uid[1]))) if uid else owner


_FIELDS = 7
"""Number of fields of a line of /etc/passwd; the last line that is read may be cut off."""


def _users(passwd: str) -> dict[str, str]:
    """Return the names of the host's own users by uid. A directory service is not asked, because it may hang."""
    rows = (line.split(":") for line in passwd.splitlines())
    return {row[2]: row[0] for row in rows if len(row) == _FIELDS}
