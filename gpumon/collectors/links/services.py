"""Services that the links need, from systemd's own files: its units, and the cgroups in which they run.

No question to systemd or D-Bus: on a sick host both may be as stuck as the driver, and not every container has them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from gpumon.collectors.links.files import UNSUPPORTED, Files, Reach, Troubles
from gpumon.model.node import UNITS

COLLECTOR = "services"

UNIT_FOLDERS = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
"""Below the host's root, the first that has a unit counts."""

HIERARCHIES = ("fs/cgroup", "fs/cgroup/systemd", "fs/cgroup/unified")
"""Below sysfs: version 2, version 1, and both at once."""


BY_HAND = frozenset({UNITS["imex_up"]})
"""Units that may be disabled on purpose: IMEX runs in pods, or a scheduler starts it for a job."""
_WANTED = (".wants", ".requires")
"""Folders beside units, of links to those that are started together with one."""

_SOMEBODY = "?"
"""Where a unit's processes are in groups below its own."""


class Services:
    """The units of UNITS that are installed."""

    def __init__(self, reach_sysfs: Reach, reach_root: Reach, leave_aside: Collection[str] = ()) -> None:
        self._sysfs = reach_sysfs(COLLECTOR)
        self._root = reach_root(COLLECTOR)
        self._aside = COLLECTOR in leave_aside
        self._processes: dict[str, frozenset[str]] = {}
        self.ended: tuple[str, ...] = ()
        """Units none of whose processes is one of those at the look before."""
        self.troubles = Troubles()

    def look(self) -> dict[str, bool]:
        """Unit -> whether it runs; not of those that are stopped, and started by hand alone.

        Empty where no systemd is to be seen, as in most containers.
        """
        self.troubles = Troubles()
        if self._aside:
            return {}
        installed = [unit for unit in UNITS.values() if self._installed(unit)]
        slices = list(self._slices()) if installed else []
        running = {unit: self._runs(unit, slices) for unit in installed if slices}
        known = {unit: runs for unit, runs in running.items() if runs is not None}
        self._compare({unit: self._processes_of(unit, slices) for unit, runs in known.items() if runs}, known)
        return {unit: runs for unit, runs in known.items() if runs or unit not in BY_HAND or self._wanted(unit)}

    def _compare(self, now: Mapping[str, frozenset[str]], known: Mapping[str, bool]) -> None:
        """With the look before: a unit that is started again at once is never seen stopped."""
        before = self._processes
        self.ended = tuple(unit for unit in known if before.get(unit) and before[unit].isdisjoint(now.get(unit, ())))
        self._processes = {**before, **now, **{unit: frozenset() for unit, runs in known.items() if not runs}}

    def _processes_of(self, unit: str, slices: Collection[str]) -> frozenset[str]:
        """Ids of the processes of a unit; where they cannot be told, those that it had."""
        for one in slices:
            try:
                text = self._sysfs.read(f"{one}/{unit}/cgroup.procs")
            except OSError as error:
                self.troubles.note(unit, error)
            else:
                if text:
                    return frozenset(text.split())
        return self._processes.get(unit) or frozenset({_SOMEBODY})

    def _installed(self, unit: str) -> bool:
        for folder in UNIT_FOLDERS:
            try:
                return bool(self._root.read(f"{folder}/{unit}"))  # a unit that is masked is empty: a link to /dev/null
            except OSError as error:
                self.troubles.note(f"{folder}/{unit}", error)
        return False

    def _wanted(self, unit: str) -> bool:
        """Whether it is enabled: another unit asks for it."""
        folders = (f"{one}/{name}" for one in UNIT_FOLDERS for name in self._names(one) if name.endswith(_WANTED))
        return any(unit in self._names(folder) for folder in folders)

    def _names(self, folder: str) -> list[str]:
        try:
            return self._root.names(folder)
        except OSError as error:
            self.troubles.note(folder, error)
            return []

    def _slices(self) -> Iterator[str]:
        """Folders of the slices: a unit is in system.slice, unless it was given another one."""
        for hierarchy in HIERARCHIES:
            try:
                names = self._sysfs.names(hierarchy)
            except OSError as error:
                self.troubles.note(hierarchy, error)
            else:
                yield from (f"{hierarchy}/{name}" for name in names if name.endswith(".slice"))

    def _runs(self, unit: str, slices: list[str]) -> bool | None:
        """None when it cannot be told."""
        try:
            return any(_populated(self._sysfs, f"{one}/{unit}") for one in slices)
        except OSError as error:
            self.troubles.note(unit, error)
            return None


def _populated(files: Files, cgroup: str) -> bool:
    """Whether a process is in it, or below: systemd removes the cgroup of a unit that has ended."""
    for name, proof in (("cgroup.events", "populated 1"), ("cgroup.procs", "")):  # version 1 has the second alone
        try:
            text = files.read(f"{cgroup}/{name}")
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
        else:
            return proof in text and bool(text)
    return False
