"""What gives this host to jobs: found by its units, programs and processes. While it is here, a free GPU may be taken.

That a unit is installed is enough: nobody should have to think of the probe when a node is put to work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from gpumon.clock import boot_clock
from gpumon.collectors.links.files import Reach, Troubles
from gpumon.collectors.links.processes import MOST_PROCESSES
from gpumon.collectors.links.services import UNIT_FOLDERS

COLLECTOR = "schedulers"
LOOK_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """Paths below the host's root."""

    name: str
    units: tuple[str, ...] = ()
    """Of systemd."""
    paths: tuple[str, ...] = ()
    """Programs, and files that it leaves."""
    commands: tuple[str, ...] = ()
    """As the kernel names its processes: 15 characters at most."""
    variable: str = ""
    """Of its jobs' environment: this agent is one of them."""


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
"""A scheduler is added by a row."""


class Schedulers:
    """Those of TABLE that are here. `environment`: this process's own."""

    def __init__(
        self,
        reach: Reach,
        leave_aside: Collection[str] = (),
        *,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._files = reach(COLLECTOR)
        self._aside = COLLECTOR in leave_aside
        self._environment = environment
        self._clock = clock
        self._due = 0.0
        self._found: tuple[str, ...] | None = None
        self.troubles = Troubles()

    def look(self) -> tuple[str, ...] | None:
        """Their names, looked up again now and then; None when nobody can tell."""
        if self._aside or self._clock() < self._due:
            return self._found
        self._due = self._clock() + LOOK_SECONDS
        self.troubles = Troubles()
        commands = frozenset(self._commands())
        found = tuple(one.name for one in TABLE if self._is_here(one, commands))
        self._found = None if self.troubles.found and not found else found
        return self._found

    def _is_here(self, one: Scheduler, commands: frozenset[str]) -> bool:
        units = (f"{folder}/{unit}" for folder in UNIT_FOLDERS for unit in one.units)
        return (
            one.variable in self._environment
            or not commands.isdisjoint(one.commands)
            or any(self._is_there(path) for path in (*units, *one.paths))
        )

    def _is_there(self, path: str) -> bool:
        """Also a link that leads nowhere from here: out of a container, links of the host lead astray."""
        return self._files.exists(path) or self._is_link(path)

    def _is_link(self, path: str) -> bool:
        try:
            return bool(self._files.link(path))
        except OSError:  # nothing there, or no link
            return False

    def _commands(self) -> Iterator[str]:
        """Names of all processes; of a container alone where it is shown no others."""
        try:
            pids = [name for name in self._files.names("proc") if name.isdecimal()]
        except OSError as error:
            self.troubles.note("proc", error)
            return
        for pid in pids[:MOST_PROCESSES]:
            try:
                yield self._files.read(f"proc/{pid}/comm")
            except OSError:
                continue  # gone
