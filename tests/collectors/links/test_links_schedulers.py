"""SchedulerReader from the files of a host: what is installed, what runs, and where the agent itself is a job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from each_case import each_case

from gpumon.collectors.links.files import Tree
from gpumon.collectors.links.schedulers import COLLECTOR, LOOK_SECONDS, SchedulerReader


class Host:
    """A host with these files, and a clock."""

    def __init__(self, folder: Path, *files: str, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.now = 0.0
        (folder / "proc" / "self").mkdir(parents=True)
        self.add(*files)
        self.schedulers = SchedulerReader(lambda _: Tree(folder), environment=environment or {}, clock=lambda: self.now)

    def add(self, *files: str) -> None:
        for one in files:
            path, _, text = one.partition("=")
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_text(text)


@each_case(
    ("files", "found"),
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
def test_a_scheduler_is_found_by_what_it_leaves_on_a_host(
    tmp_path: Path, files: tuple[str, ...], found: tuple[str, ...]
) -> None:
    """Its unit, its program or its process: that of a node, not of a controller or a client."""
    assert Host(tmp_path, *files).schedulers.poll() == found


def test_a_unit_of_the_host_that_is_a_link_is_found_from_a_container(tmp_path: Path) -> None:
    """There it leads nowhere: its target is below the host's root."""
    host = Host(tmp_path, "etc/systemd/system/gpumon.service=[Service]\n")
    (tmp_path / "etc/systemd/system/slurmd.service").symlink_to("/nonexistent/slurm/slurmd.service")
    assert host.schedulers.poll() == ("slurmd",)


def test_an_agent_in_a_pod_knows_of_the_kubelet(tmp_path: Path) -> None:
    """It may see nothing of the host."""
    host = Host(tmp_path, environment={"KUBERNETES_SERVICE_HOST": "10.96.0.1"})
    assert host.schedulers.poll() == ("kubelet",)


def test_a_scheduler_that_is_installed_later_is_found_at_the_next_look(tmp_path: Path) -> None:
    """All processes are looked at once a minute."""
    host = Host(tmp_path)
    assert host.schedulers.poll() == ()
    host.add("proc/4711/comm=slurmd\n")
    assert host.schedulers.poll() == ()
    host.now = LOOK_SECONDS
    assert host.schedulers.poll() == ("slurmd",)


def test_files_that_do_not_answer_leave_it_unknown(tmp_path: Path) -> None:
    """The collector is left aside, and nobody can tell."""
    Host(tmp_path, "usr/sbin/slurmd=")
    assert SchedulerReader(lambda _: Tree(tmp_path), (COLLECTOR,), environment={}).poll() is None
