"""The reader `owners`: the owners of processes on GPUs, from a tree of /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumon.collectors.host.owners import OwnerReader
from gpumon.collectors.host.reader import Tree, Trees, Turn
from gpumon.model.allocation import HolderProcess, Owner
from gpumon.model.orders import HostOrders

STAT = "{pid} (a b) c) {state} 1 0 0 0 0 0 0 0 0 0 0 0 0 0 20 0 1 0 {started}"


class Host:
    """A host with a folder /proc, whose reader gets its turns."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._reader = OwnerReader()

    def run(self, pid: int, cgroup: str, *, uid: int = 1000, state: str = "S", started: int = 77) -> None:
        folder = self._root / "proc" / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stat").write_text(STAT.format(pid=pid, state=state, started=started))
        (folder / "cgroup").write_text(f"0::{cgroup}\n")
        (folder / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")

    def end(self, pid: int) -> None:
        (self._root / "proc" / str(pid) / "stat").unlink()

    def poll(self, *pids: int) -> dict[str, HolderProcess]:
        tree = Tree(self._root)
        turn = Turn("owners", Trees(tree, tree, tree), HostOrders(), 1000.0, pids=tuple(map(str, pids)))
        return dict(self._reader(turn).processes)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n")
    return Host(tmp_path)


def test_a_process_has_the_owner_of_its_cgroup_and_its_user(host: Host) -> None:
    """The user has its name if the host's own file of users has one, else its number."""
    host.run(7, "/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", state="T")
    host.run(8, "/system.slice/train.service", uid=5000)
    assert host.poll(7, 8) == {
        "7": HolderProcess(owner=Owner(slurm_job_id="4711", user="ann"), state="T", cpu_seconds=0.0),
        "8": HolderProcess(owner=Owner(systemd_unit="train.service", user="5000"), state="S", cpu_seconds=0.0),
    }


def test_a_file_of_users_that_is_cut_off_names_nobody_else(host: Host, tmp_path: Path) -> None:
    """The last line that fits into a read may have only the first digits of a user's number."""
    (tmp_path / "etc/passwd").write_text("ann:x:1000:1000::/home/ann:/bin/sh\neve:x:500")
    host.run(7, "/system.slice/a.service", uid=500)
    assert host.poll(7)["7"].owner.user == "500"


def test_a_process_that_has_ended_is_absent(host: Host) -> None:
    """Only the processes that the daemon names are read, and of these only those that run."""
    host.run(7, "/system.slice/a.service")
    host.run(8, "/system.slice/b.service")
    assert set(host.poll(7, 9)) == {"7"}
    host.end(7)
    assert host.poll(7) == {}


def test_a_reused_process_id_has_another_owner(host: Host) -> None:
    """A later process with the same id, which has another start time, does not keep the owner of the earlier one."""
    host.run(7, "/system.slice/a.service")
    host.poll(7)
    host.run(7, "/system.slice/b.service")
    assert host.poll(7)["7"].owner.systemd_unit == "a.service", "the owner of a running process is read once"
    host.run(7, "/system.slice/b.service", started=78)
    assert host.poll(7)["7"].owner.systemd_unit == "b.service"
