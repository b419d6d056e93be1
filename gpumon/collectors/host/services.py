"""Read whether the services that the links need are running.

systemd and D-Bus are not queried, but unit files, cgroups and processes are read: on a failing host both may hang like
the driver, and few containers have them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpumon.collectors.host.reader import UNSUPPORTED, Files, Turn, list_names
from gpumon.model.node import UNITS
from gpumon.model.snapshot import ServiceReadings

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
