"""Services and schedulers of the host."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from each_case import each_case
from reader_turns import Turns

from gpumon.collectors.host.reader import Tree
from gpumon.collectors.host.schedulers import read_schedulers
from gpumon.collectors.host.services import ServiceReader
from gpumon.model.snapshot import SchedulerReadings, ServiceReadings

UNIT = "nvidia-fabricmanager.service"


class SystemdHost:
    """The files of a systemd host on which the fabric manager is not installed yet."""

    def __init__(self, folder: Path, hierarchy: str = "") -> None:
        self.root = folder
        self.cgroups = folder / "sys" / "fs" / "cgroup" / hierarchy
        (self.cgroups / "system.slice").mkdir(parents=True)

    def install(self, text: str = "[Service]\n", folder: str = "usr/lib/systemd/system") -> None:
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        (self.root / folder / UNIT).write_text(text)

    def run(self, name: str = "cgroup.events", text: str = "populated 1\nfrozen 0\n", slice_: str = "system") -> None:
        cgroup = self.cgroups / f"{slice_}.slice" / UNIT
        cgroup.mkdir(parents=True)
        (cgroup / name).write_text(text)

    def reader(self) -> Turns[ServiceReadings]:
        return Turns(ServiceReader(), Tree(self.root / "sys"), Tree(self.root))

    def poll(self) -> Mapping[str, bool]:
        return self.reader().poll().running


@pytest.fixture
def host(tmp_path: Path) -> SystemdHost:
    return SystemdHost(tmp_path)


def test_a_unit_that_is_not_installed_is_omitted(host: SystemdHost) -> None:
    """A unit that is not installed has no entry, as on GB200 without a fabric manager."""
    assert host.poll() == {}


@pytest.mark.parametrize("folder", ["etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"])
def test_an_installed_unit_without_processes_is_stopped(host: SystemdHost, folder: str) -> None:
    """An installed unit without a cgroup is stopped, because systemd removes the cgroup at its end."""
    host.install(folder=folder)
    assert host.poll() == {UNIT: False}


def test_a_unit_with_processes_runs(host: SystemdHost) -> None:
    """A unit runs if its cgroup, or a child cgroup, is populated."""
    host.install()
    host.run()
    assert host.poll() == {UNIT: True}


def test_a_unit_with_an_empty_cgroup_is_stopped(host: SystemdHost) -> None:
    """An empty cgroup, which exists briefly while a unit ends, is a stopped unit."""
    host.install()
    host.run(text="populated 0\nfrozen 0\n")
    assert host.poll() == {UNIT: False}


def test_a_unit_can_be_in_another_slice(host: SystemdHost) -> None:
    """A unit is found in the slice that the operator configured."""
    host.install()
    host.run(slice_="nvidia")
    assert host.poll() == {UNIT: True}


@pytest.mark.parametrize(("processes", "runs"), [("1234\n1240\n", True), ("", False)])
def test_cgroups_of_version_1_list_processes(tmp_path: Path, processes: str, *, runs: bool) -> None:
    """With cgroup v1 a unit runs if cgroup.procs of systemd's hierarchy lists a process."""
    host = SystemdHost(tmp_path, "systemd")
    host.install()
    host.run("cgroup.procs", processes)
    assert host.poll() == {UNIT: runs}


def test_a_masked_unit_is_not_installed(host: SystemdHost) -> None:
    """A masked unit has no entry, so that it raises no alarm."""
    host.install()
    mask = host.root / "etc" / "systemd" / "system" / UNIT
    mask.parent.mkdir(parents=True)
    mask.symlink_to("/dev/null")
    assert host.poll() == {}


IMEX = "nvidia-imex.service"


@pytest.mark.parametrize(
    ("folder", "expected"),
    [("", {}), ("multi-user.target.wants", {IMEX: False}), ("slurmd.service.requires", {IMEX: False})],
)
def test_imex_is_stopped_only_if_a_unit_starts_it(host: SystemdHost, folder: str, expected: dict[str, bool]) -> None:
    """IMEX is stopped only if another unit wants it, because pods and jobs start it with its unit disabled."""
    host.install()
    units = host.root / "usr/lib/systemd/system"
    (units / IMEX).write_text("[Service]\n")
    if folder:
        wants = host.root / "etc/systemd/system" / folder
        wants.mkdir(parents=True)
        (wants / IMEX).symlink_to(f"/usr/lib/systemd/system/{IMEX}")
    assert host.poll() == {UNIT: False, **expected}
    cgroup = host.cgroups / "system.slice" / IMEX
    cgroup.mkdir()
    (cgroup / "cgroup.events").write_text("populated 1\n")
    assert host.poll() == {UNIT: False, IMEX: True}


def test_services_are_unknown_without_systemd(tmp_path: Path) -> None:
    """Without a systemd slice no service is reported, as in a container image with the unit file."""
    host = SystemdHost(tmp_path)
    host.install()
    (host.cgroups / "system.slice").rmdir()
    assert host.poll() == {}


def test_a_unit_restarted_between_two_polls_has_ended(tmp_path: Path) -> None:
    """A unit has ended if none of its previous processes remains; the end of one process of several is ignored."""
    host = SystemdHost(tmp_path)
    host.install()
    host.run()
    processes = host.cgroups / "system.slice" / UNIT / "cgroup.procs"
    services = host.reader()
    ended = []
    for text in ("100\n101\n", "100\n101\n", "100\n", "100\n140\n", "200\n", "200\n"):
        processes.write_text(text)
        polled = services.poll()
        assert polled.running == {UNIT: True}
        ended.append(polled.ended)
    assert ended == [(), (), (), (), (UNIT,), ()]
    (processes.parent / "cgroup.events").write_text("populated 0\n")
    processes.write_text("")
    assert services.poll() == ServiceReadings(running={UNIT: False}, ended=(UNIT,))
    assert services.poll() == ServiceReadings(running={UNIT: False})


def test_a_unit_with_processes_in_child_cgroups_ends_when_it_stops(host: SystemdHost) -> None:
    """A unit whose processes cannot be listed ends when its cgroup is empty."""
    host.install()
    host.run()
    services = host.reader()
    services.poll()
    (host.cgroups / "system.slice" / UNIT / "cgroup.events").write_text("populated 0\n")
    assert services.poll() == ServiceReadings(running={UNIT: False}, ended=(UNIT,))


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
    host = SchedulerHost(tmp_path, environment={"KUBERNETES_SERVICE_HOST": "10.96.0.1"})
    assert host.poll() == ("kubelet",)


def test_a_scheduler_installed_later_is_found_by_the_next_poll(tmp_path: Path) -> None:
    """Nothing is kept between turns."""
    host = SchedulerHost(tmp_path)
    assert host.poll() == ()
    host.add("proc/4711/comm=slurmd\n")
    assert host.poll() == ("slurmd",)
