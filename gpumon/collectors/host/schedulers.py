"""Detect job schedulers (Slurm, Kubernetes).

On a host with a scheduler, an idle GPU may be assigned to a job at any time. An installed systemd unit is sufficient,
even if it is stopped, so that probes run in the same way before and after the scheduler starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from gpumon.collectors.host.processes import MAX_PROCESSES
from gpumon.collectors.host.reader import Files, Turn, list_names, read_link, read_text
from gpumon.collectors.host.services import UNIT_FOLDERS
from gpumon.model.snapshot import SchedulerReadings


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """A job scheduler, and the signs by which it is detected. Paths are relative to the root of the host."""

    name: str
    units: tuple[str, ...] = ()
    """Names of systemd units."""
    paths: tuple[str, ...] = ()
    """Paths of the scheduler's programs, and of files that they create."""
    commands: tuple[str, ...] = ()
    """Process names as the kernel truncates them, to 15 characters."""
    variable: str = ""
    """Environment variable that the scheduler sets in its jobs. The agent has this variable if it runs as a job."""


TABLE = (
    Scheduler(
        name="slurmd",
        units=("slurmd.service",),
        paths=("usr/sbin/slurmd", "usr/local/sbin/slurmd", "opt/slurm/sbin/slurmd", "var/spool/slurmd/cred_state"),
        commands=("slurmd",),
    ),
    Scheduler(
        name="kubelet",
        units=(
            *("kubelet.service", "k3s.service", "k3s-agent.service", "rke2-server.service", "rke2-agent.service"),
            "snap.microk8s.daemon-kubelite.service",
        ),
        paths=("usr/bin/kubelet", "usr/local/bin/kubelet", "var/lib/kubelet/config.yaml"),
        commands=("kubelet", "kubelite", "k3s", "k3s-agent", "k3s-server"),
        variable="KUBERNETES_SERVICE_HOST",
    ),
)
"""The schedulers that are detected. To add one, add a row."""


def read_schedulers(turn: Turn, environment: Mapping[str, str] = os.environ) -> SchedulerReadings:
    """Return the names of the schedulers of this host; unknown if read errors prevented the detection."""
    pids = [name for name in list_names(turn.root, "proc", turn.errors) if name.isdecimal()]
    commands = frozenset(read_text(turn.root, f"proc/{pid}/comm") for pid in pids[:MAX_PROCESSES])
    names = tuple(row.name for row in TABLE if row.variable in environment or _is_present(row, turn.root, commands))
    return SchedulerReadings(names=None if turn.errors.found and not names else names)


def _is_present(scheduler: Scheduler, root: Files, commands: frozenset[str]) -> bool:
    units = (f"{folder}/{unit}" for folder in UNIT_FOLDERS for unit in scheduler.units)
    # In a container, a link of the host may not resolve: it is a sign too.
    return not commands.isdisjoint(scheduler.commands) or any(
        root.exists(path) or read_link(root, path) for path in (*units, *scheduler.paths)
    )
