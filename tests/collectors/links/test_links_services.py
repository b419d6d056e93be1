"""ServiceReader from systemd's own files: installed, masked, running, stopped, or nobody can tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumon.collectors.links.files import Tree
from gpumon.collectors.links.services import COLLECTOR, ServiceReader

UNIT = "nvidia-fabricmanager.service"


class Host:
    """The files of a host that systemd runs; the fabric manager is not installed yet."""

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

    def poll(self, *quarantined: str) -> dict[str, bool]:
        return ServiceReader(lambda _: Tree(self.root / "sys"), lambda _: Tree(self.root), quarantined).poll()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_unit_that_is_not_installed_is_left_out(host: Host) -> None:
    """GB200 needs no fabric manager: nothing is missing."""
    assert host.poll() == {}


@pytest.mark.parametrize("folder", ["etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"])
def test_an_installed_unit_without_processes_is_stopped(host: Host, folder: str) -> None:
    """Systemd removes the cgroup of a unit that has ended."""
    host.install(folder=folder)
    assert host.poll() == {UNIT: False}


def test_a_unit_with_processes_runs(host: Host) -> None:
    """Its cgroup is populated, itself or below."""
    host.install()
    host.run()
    assert host.poll() == {UNIT: True}


def test_a_cgroup_that_is_left_empty_is_no_running_service(host: Host) -> None:
    """For a moment, while it ends."""
    host.install()
    host.run(text="populated 0\nfrozen 0\n")
    assert host.poll() == {UNIT: False}


def test_a_unit_may_be_given_another_slice(host: Host) -> None:
    """Slice= is the operator's choice."""
    host.install()
    host.run(slice_="nvidia")
    assert host.poll() == {UNIT: True}


@pytest.mark.parametrize(("processes", "runs"), [("1234\n1240\n", True), ("", False)])
def test_cgroups_of_version_1_list_processes(tmp_path: Path, processes: str, *, runs: bool) -> None:
    """They have no cgroup.events, and systemd its own hierarchy."""
    host = Host(tmp_path, "systemd")
    host.install()
    host.run("cgroup.procs", processes)
    assert host.poll() == {UNIT: runs}


def test_a_masked_unit_is_not_installed(host: Host) -> None:
    """An operator who masks it does not want to hear that it is stopped."""
    host.install()
    mask = host.root / "etc" / "systemd" / "system" / UNIT
    mask.parent.mkdir(parents=True)
    mask.symlink_to("/dev/null")
    assert host.poll() == {}


IMEX = "nvidia-imex.service"


@pytest.mark.parametrize(
    ("folder", "told"),
    [("", {}), ("multi-user.target.wants", {IMEX: False}), ("slurmd.service.requires", {IMEX: False})],
)
def test_imex_is_missed_only_where_something_starts_it(host: Host, folder: str, told: dict[str, bool]) -> None:
    """Where it runs in pods, or for a job, its unit is disabled on purpose; the fabric manager's never is."""
    host.install()
    units = host.root / "usr/lib/systemd/system"
    (units / IMEX).write_text("[Service]\n")
    if folder:
        wants = host.root / "etc/systemd/system" / folder
        wants.mkdir(parents=True)
        (wants / IMEX).symlink_to(f"/usr/lib/systemd/system/{IMEX}")
    assert host.poll() == {UNIT: False, **told}
    cgroup = host.cgroups / "system.slice" / IMEX
    cgroup.mkdir()
    (cgroup / "cgroup.events").write_text("populated 1\n")
    assert host.poll() == {UNIT: False, IMEX: True}


def test_without_systemd_nobody_can_tell(tmp_path: Path) -> None:
    """A container image may have the unit, but nothing runs it there."""
    host = Host(tmp_path)
    host.install()
    (host.cgroups / "system.slice").rmdir()
    assert host.poll() == {}


def test_left_aside_it_is_not_touched(host: Host) -> None:
    """Its files may hang as well."""
    host.install()
    assert host.poll(COLLECTOR) == {}


def test_a_unit_that_is_started_anew_between_two_looks_has_ended(tmp_path: Path) -> None:
    """None of its processes is one of before; that one of several goes is nothing."""
    host = Host(tmp_path)
    host.install()
    host.run()
    processes = host.cgroups / "system.slice" / UNIT / "cgroup.procs"
    services = ServiceReader(lambda _: Tree(host.root / "sys"), lambda _: Tree(host.root))
    ended = []
    for text in ("100\n101\n", "100\n101\n", "100\n", "100\n140\n", "200\n", "200\n"):
        processes.write_text(text)
        assert services.poll() == {UNIT: True}
        ended.append(services.ended)
    assert ended == [(), (), (), (), (UNIT,), ()]
    (processes.parent / "cgroup.events").write_text("populated 0\n")
    processes.write_text("")
    assert (services.poll(), services.ended) == ({UNIT: False}, (UNIT,))
    assert (services.poll(), services.ended) == ({UNIT: False}, ())


def test_a_unit_whose_processes_are_in_groups_below_ends_when_it_stops(host: Host) -> None:
    """Who they are is not to be seen: that it runs is."""
    host.install()
    host.run()
    services = ServiceReader(lambda _: Tree(host.root / "sys"), lambda _: Tree(host.root))
    services.poll()
    (host.cgroups / "system.slice" / UNIT / "cgroup.events").write_text("populated 0\n")
    assert (services.poll(), services.ended) == ({UNIT: False}, (UNIT,))
