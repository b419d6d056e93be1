"""Detect job schedulers (Slurm, Kubernetes) on this host by their systemd units, files, processes and environment.

On a host with a scheduler, an idle GPU may be assigned to a job at any time. An installed systemd unit is sufficient,
even if it is stopped, so that probes run in the same way before and after the scheduler starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from gpumon.clock import boot_clock
from gpumon.collectors.host.files import Reach, ReadErrors, list_names, read_link, read_text
from gpumon.collectors.host.processes import MAX_PROCESSES
from gpumon.collectors.host.services import UNIT_FOLDERS

COLLECTOR = "schedulers"
LOOK_SECONDS = 60.0


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


class SchedulerReader:
    """Detects the schedulers of this host. `environment` holds the environment variables of this process."""

    def __init__(
        self,
        reach: Reach,
        quarantined: Collection[str] = (),
        *,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._files = reach(COLLECTOR)
        self._quarantined = COLLECTOR in quarantined
        self._environment = environment
        self._clock = clock
        self._due = 0.0
        self._found: tuple[str, ...] | None = None
        self.read_errors = ReadErrors()

    def poll(self) -> tuple[str, ...] | None:
        """Return the names of the schedulers; None if quarantined, or if read errors prevented the detection.

        The schedulers are detected again every LOOK_SECONDS. In between, the last result is returned.
        """
        if self._quarantined or self._clock() < self._due:
            return self._found
        self._due = self._clock() + LOOK_SECONDS
        self.read_errors = ReadErrors()
        commands = frozenset(self._commands())
        schedulers = tuple(scheduler.name for scheduler in TABLE if self._is_present(scheduler, commands))
        self._found = None if self.read_errors.found and not schedulers else schedulers
        return self._found

    def _is_present(self, scheduler: Scheduler, commands: frozenset[str]) -> bool:
        units = (f"{folder}/{unit}" for folder in UNIT_FOLDERS for unit in scheduler.units)
        return (
            scheduler.variable in self._environment
            or not commands.isdisjoint(scheduler.commands)
            or any(self._is_there(path) for path in (*units, *scheduler.paths))
        )

    def _is_there(self, path: str) -> bool:
        """Return True if the path exists or is a broken link: in a container, links of the host may not resolve."""
        return self._files.exists(path) or bool(read_link(self._files, path))

    def _commands(self) -> Iterator[str]:
        """Yield the names of the visible processes, at most MAX_PROCESSES."""
        pids = [name for name in list_names(self._files, "proc", self.read_errors) if name.isdecimal()]
        for pid in pids[:MAX_PROCESSES]:
            yield read_text(self._files, f"proc/{pid}/comm")  # "" if it has ended
