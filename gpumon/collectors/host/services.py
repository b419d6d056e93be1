"""Read from systemd's unit files and cgroups whether the services that the links need are running.

systemd and D-Bus are not queried: on a failing host both may hang like the driver, and few containers have them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from gpumon.collectors.host.files import UNSUPPORTED, Files, Reach, ReadErrors, list_names
from gpumon.model.node import UNITS

COLLECTOR = "services"

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


FABRIC_MANAGER = UNITS["fabric_manager_up"]
BY_HAND = frozenset({UNITS["imex_up"]})
"""Units that are not reported while they are stopped and disabled. IMEX may run in pods, or a scheduler may start IMEX
for a job.
"""
_WANTED = (".wants", ".requires")
"""Suffixes of folders with links to units. With multi-user.target, systemd starts those in multi-user.target.wants."""

_UNREAD = "?"
"""Stands for the process ids of a unit if they could not be read."""


class ServiceReader:
    """Reads whether those systemd units of model.node.UNITS that are installed are running."""

    def __init__(self, reach_sysfs: Reach, reach_root: Reach, quarantined: Collection[str] = ()) -> None:
        self._sysfs = reach_sysfs(COLLECTOR)
        self._root = reach_root(COLLECTOR)
        self._quarantined = COLLECTOR in quarantined
        self._processes: dict[str, frozenset[str]] = {}
        self._has_run_elsewhere = False
        self.ended: tuple[str, ...] = ()
        """Units whose processes at the previous poll have all ended since then. The unit may be running again."""
        self.read_errors = ReadErrors()

    def poll(self, *, fabric_manager: bool | None = None) -> dict[str, bool]:
        """Return whether each installed unit runs, by unit name, and set `ended`.

        Omit units whose cgroup cannot be read, and stopped and disabled units in BY_HAND; if quarantined, omit all.
        `fabric_manager`: whether a fabric manager process exists, also in a container of the GPU operator; None if
        unknown. Without systemd, as in most containers, only the fabric manager can be in the result.
        """
        self.read_errors = ReadErrors()
        if self._quarantined:
            return {}
        return self._with_fabric_manager(self._units(), process=fabric_manager)

    def _with_fabric_manager(self, states: dict[str, bool], *, process: bool | None) -> dict[str, bool]:
        """Return `states` with the state of the fabric manager, if it runs or ran outside its unit; else `states`.

        `process`: whether a fabric manager process exists; None if unknown.
        """
        if process and not states.get(FABRIC_MANAGER):
            self._has_run_elsewhere = True
            return {**states, FABRIC_MANAGER: True}
        return {FABRIC_MANAGER: False, **states} if self._has_run_elsewhere and process is not None else states

    def _units(self) -> dict[str, bool]:
        installed = [unit for unit in UNITS.values() if self._is_installed(unit)]
        slices = list(self._slices()) if installed else []
        running = {unit: self._runs(unit, slices) for unit in installed if slices}
        states = {unit: runs for unit, runs in running.items() if runs is not None}
        self._compare({unit: self._processes_of(unit, slices) for unit, runs in states.items() if runs}, states)
        return {unit: runs for unit, runs in states.items() if runs or unit not in BY_HAND or self._is_enabled(unit)}

    def _compare(self, now: Mapping[str, frozenset[str]], states: Mapping[str, bool]) -> None:
        """Set `ended` by comparing process ids with those of the previous poll. This also detects a quick restart."""
        before = self._processes
        self.ended = tuple(unit for unit in states if before.get(unit) and before[unit].isdisjoint(now.get(unit, ())))
        self._processes = {**before, **now, **{unit: frozenset() for unit, runs in states.items() if not runs}}

    def _processes_of(self, unit: str, slices: Collection[str]) -> frozenset[str]:
        """Return the process ids of a unit, or those of the previous poll if they cannot be read."""
        for folder in slices:
            try:
                text = self._sysfs.read(f"{folder}/{unit}/cgroup.procs")
            except OSError as error:
                self.read_errors.note(unit, error)
            else:
                if text:
                    return frozenset(text.split())
        return self._processes.get(unit) or frozenset({_UNREAD})

    def _is_installed(self, unit: str) -> bool:
        for folder in UNIT_FOLDERS:
            try:
                return bool(self._root.read(f"{folder}/{unit}"))  # a masked unit is empty: a link to /dev/null
            except OSError as error:
                self.read_errors.note(f"{folder}/{unit}", error)
        return False

    def _is_enabled(self, unit: str) -> bool:
        """Return whether the unit is enabled: another unit wants or requires it."""
        folders = (
            f"{folder}/{name}"
            for folder in UNIT_FOLDERS
            for name in list_names(self._root, folder, self.read_errors)
            if name.endswith(_WANTED)
        )
        return any(unit in list_names(self._root, folder, self.read_errors) for folder in folders)

    def _slices(self) -> Iterator[str]:
        """Yield the cgroup folder of each slice. A unit is in system.slice unless it is assigned to another slice."""
        for hierarchy in HIERARCHIES:
            names = list_names(self._sysfs, hierarchy, self.read_errors)
            yield from (f"{hierarchy}/{name}" for name in names if name.endswith(".slice"))

    def _runs(self, unit: str, slices: list[str]) -> bool | None:
        """Return whether the unit has a running process; None if its cgroup cannot be read."""
        try:
            return any(_has_process(self._sysfs, f"{folder}/{unit}") for folder in slices)
        except OSError as error:
            self.read_errors.note(unit, error)
            return None


def _has_process(files: Files, cgroup: str) -> bool:
    """Return whether a process is in the cgroup or, with cgroup version 2, in one below it.

    A missing cgroup means False, because systemd removes the cgroup of a unit that has ended.
    """
    for name, proof in (("cgroup.events", "populated 1"), ("cgroup.procs", "")):  # version 1 has only the second
        try:
            text = files.read(f"{cgroup}/{name}")
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
        else:
            return proof in text and bool(text)
    return False
