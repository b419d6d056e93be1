"""Read whether the services that the links need are running, and detect job schedulers (Slurm, Kubernetes).

systemd and D-Bus are not queried, but unit files, cgroups and processes are read: on a failing host both may hang like
the driver, and few containers have them.

On a host with a scheduler, an idle GPU may be assigned to a job at any time. An installed systemd unit is sufficient,
even if it is stopped, so that probes run in the same way before and after the scheduler starts.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpumon.collectors.host.processes import MAX_PROCESSES
from gpumon.collectors.host.reader import UNSUPPORTED, Files, Turn, list_names, read_link, read_text
from gpumon.model.node import UNITS
from gpumon.model.snapshot import SchedulerReadings, ServiceReadings

UNIT_FOLDERS = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
"""Folders of systemd unit files, relative to the host's root, in the order of their precedence."""

HIERARCHIES = ("fs/cgroup", "fs/cgroup/systemd", "fs/cgroup/unified")
"""Root folders of cgroup version 2, version 1 and hybrid, relative to sysfs."""

BY_HAND = frozenset({UNITS["imex_up"]})
"""Units that are not reported while stopped and disabled: IMEX may run in pods, or a scheduler may start it."""
_WANTED = (".wants", ".requires")
"""Suffixes of folders with links to units. With multi-user.target, systemd starts those in multi-user.target.wants."""

_UNREAD = "?"
"""Stands for the process ids of a unit if they could not be read."""


class ServiceReader:
    """Reads whether those systemd units of model.node.UNITS that are installed are running."""

    def __init__(self) -> None:
        self._processes: dict[str, frozenset[str]] = {}

    def __call__(self, turn: Turn) -> ServiceReadings:
        """Return whether each installed unit runs, and the units whose processes at the last turn have all ended.

        Such a unit may be running again. Units whose cgroup cannot be read are left out, and stopped and disabled units
        in BY_HAND. Without systemd, as in most containers, the result is empty.
        """
        self._turn = turn
        installed = [unit for unit in UNITS.values() if self._is_installed(unit)]
        slices = [  # of every user: a unit is in system.slice unless it is assigned to another one
            f"{hierarchy}/{name}"
            for hierarchy in (HIERARCHIES if installed else ())
            for name in list_names(turn.sysfs, hierarchy, turn.errors)
            if name.endswith(".slice")
        ]
        running = {unit: self._runs(unit, slices) for unit in installed if slices}
        states = {unit: runs for unit, runs in running.items() if runs is not None}
        ended = self._compare({unit: self._processes_of(unit, slices) for unit, runs in states.items() if runs}, states)
        return ServiceReadings(
            running={
                unit: runs for unit, runs in states.items() if runs or unit not in BY_HAND or self._is_enabled(unit)
            },
            ended=ended,
        )

    def _compare(self, now: Mapping[str, frozenset[str]], states: Mapping[str, bool]) -> tuple[str, ...]:
        """Return the units that have ended, by comparing process ids. This also detects a quick restart."""
        before = self._processes
        ended = tuple(unit for unit in states if before.get(unit) and before[unit].isdisjoint(now.get(unit, ())))
        self._processes = {**before, **now, **{unit: frozenset() for unit, runs in states.items() if not runs}}
        return ended

    def _processes_of(self, unit: str, slices: Collection[str]) -> frozenset[str]:
        """Return the process ids of a unit, or those of the last turn if they cannot be read."""
        for folder in slices:
            try:
                text = self._turn.sysfs.read(f"{folder}/{unit}/cgroup.procs")
            except OSError as error:
                self._turn.errors.note(unit, error)
            else:
                if text:
                    return frozenset(text.split())
        return self._processes.get(unit) or frozenset({_UNREAD})

    def _is_installed(self, unit: str) -> bool:
        for folder in UNIT_FOLDERS:
            try:
                return bool(self._turn.root.read(f"{folder}/{unit}"))  # a masked unit is empty: a link to /dev/null
            except OSError as error:
                self._turn.errors.note(f"{folder}/{unit}", error)
        return False

    def _is_enabled(self, unit: str) -> bool:
        """Return whether the unit is enabled: another unit wants or requires it."""
        folders = (
            f"{folder}/{name}"
            for folder in UNIT_FOLDERS
            for name in list_names(self._turn.root, folder, self._turn.errors)
            if name.endswith(_WANTED)
        )
        return any(unit in list_names(self._turn.root, folder, self._turn.errors) for folder in folders)

    def _runs(self, unit: str, slices: list[str]) -> bool | None:
        """Return whether the unit has a running process; None if its cgroup cannot be read."""
        try:
            return any(_has_process(self._turn.sysfs, f"{folder}/{unit}") for folder in slices)
        except OSError as error:
            self._turn.errors.note(unit, error)
            return None


def _has_process(files: Files, cgroup: str) -> bool:
    """Return whether a process is in the cgroup or below it. systemd removes the cgroup of a unit that has ended."""
    for name, proof in (("cgroup.events", "populated 1"), ("cgroup.procs", "")):  # version 1 has only the second
        try:
            text = files.read(f"{cgroup}/{name}")
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
        else:
            return proof in text and bool(text)
    return False


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
