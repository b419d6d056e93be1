"""The reader of schedulers reads which scheduler is installed or runs, and whether the agent is a job of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from each_case import each_case
from reader_turns import Turns

from gpumon.collectors.host.reader import Tree
from gpumon.collectors.host.schedulers import read_schedulers
from gpumon.model.snapshot import SchedulerReadings


class SchedulerHost:
    """A host with these files."""

    def __init__(self, folder: Path, *files: str, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        (folder / "proc" / "self").mkdir(parents=True)
        self.add(*files)
        self._environment = environment or {}

    def poll(self) -> tuple[str, ...] | None:
        turns = Turns[SchedulerReadings](partial(read_schedulers, environment=self._environment), Tree(self.folder))
        return turns.poll().names

    def add(self, *files: str) -> None:
        for file in files:
            path, _, text = file.partition("=")
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_text(text)


@each_case(
    ("files", "expected"),
    [
        ((), ()),
        (("proc/1/comm=systemd\n", "proc/71/comm=slurmctld\n", "usr/bin/kubectl="), ()),
        (("etc/systemd/system/slurmd.service=[Service]\n",), ("slurmd",)),
        (("usr/sbin/slurmd=",), ("slurmd",)),
        (("proc/1/comm=systemd\n", "proc/4711/comm=slurmd\n"), ("slurmd",)),
        (("usr/lib/systemd/system/kubelet.service=[Service]\n",), ("kubelet",)),
        (("etc/systemd/system/rke2-agent.service=[Service]\n",), ("kubelet",)),
        (("proc/4711/comm=k3s-agent\n",), ("kubelet",)),
        (("proc/4711/comm=slurmd\n", "var/lib/kubelet/config.yaml="), ("slurmd", "kubelet")),
    ],
)
def test_a_scheduler_is_detected_by_its_files(
    tmp_path: Path, files: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    """A scheduler of a node is detected by its unit, program or process; a controller or a client is not."""
    assert SchedulerHost(tmp_path, *files).poll() == expected


def test_a_symlinked_unit_of_the_host_is_found_from_a_container(tmp_path: Path) -> None:
    """A unit file that links to a path below the host's root is found from a container."""
    host = SchedulerHost(tmp_path, "etc/systemd/system/gpumon.service=[Service]\n")
    (tmp_path / "etc/systemd/system/slurmd.service").symlink_to("/nonexistent/slurm/slurmd.service")
    assert host.poll() == ("slurmd",)


def test_an_agent_in_a_pod_detects_the_kubelet(tmp_path: Path) -> None:
    """An agent in a pod detects the kubelet without access to files of the host."""
    host = SchedulerHost(tmp_path, environment={"KUBERNETES_SERVICE_HOST": "10.96.0.1"})
    assert host.poll() == ("kubelet",)


def test_a_scheduler_installed_later_is_found_by_the_next_poll(tmp_path: Path) -> None:
    """Nothing is kept between turns."""
    host = SchedulerHost(tmp_path)
    assert host.poll() == ()
    host.add("proc/4711/comm=slurmd\n")
    assert host.poll() == ("slurmd",)
