"""ProcessReader finds processes that are stuck in state D with a GPU open, and no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpumon.collectors.links.files import Tree
from gpumon.collectors.links.processes import COLLECTOR, MAX_PROCESSES, ProcessReader
from gpumon.model.snapshot import StuckProcess
from gpumon.sim import SimulationError
from gpumon.sim.infiniband import EmptyTree, open_tree

DAEMON, SELF = 100, 101
HOST = "pid:[4026531836]"


class Host:
    """A host's /proc, and the time."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.now = 1000.0
        self.process(DAEMON, "S")
        self.process(SELF, "S", parent=DAEMON)
        self.link("proc/self", str(SELF))
        self.link(f"proc/{SELF}/ns/pid", HOST)
        self.processes = ProcessReader(lambda _: Tree(folder), clock=lambda: self.now)

    def link(self, path: str, target: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).symlink_to(target)

    def process(
        self,
        pid: int,
        state: str,
        *devices: str,
        parent: int = 1,
        flags: int = 0x400000,
        ran: int = 5,
        threads: dict[int, str] | None = None,
        stack: str = "[<0>] nfs_wait_bit+0x1/0x2 [nfs]",
    ) -> None:
        """With these threads; without any named, its first one."""
        folder = self.root / "proc" / str(pid)

        def stat(thread: int, state: str) -> str:
            count = len(threads or {}) or 1
            return f"{thread} (a) name) {state} {parent} 0 0 0 0 {flags} 0 0 0 0 {ran} 1 0 0 20 0 {count} 0 777 0"

        for thread, its_state in (threads or {pid: state}).items():
            task = folder / "task" / str(thread)
            task.mkdir(parents=True, exist_ok=True)
            (task / "stat").write_text(stat(thread, its_state))
            (task / "stack").write_text(stack)
            for number, device in enumerate(("/dev/null", *devices) if its_state == "D" else ()):
                if not (task / "fd" / str(number)).is_symlink():
                    self.link(f"proc/{pid}/task/{thread}/fd/{number}", device)
        (folder / "stat").write_text(stat(pid, state))

    def poll(self, times: int = 2) -> tuple[StuckProcess, ...] | None:
        """Every quarter of a minute."""
        found: tuple[StuckProcess, ...] | None = ()
        for _ in range(times):
            self.now += 15
            found = self.processes.poll()
        return found


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_process_asleep_in_the_kernel_with_a_gpu_is_stuck(host: Host) -> None:
    """Since it was first seen so; its GPUs by their device nodes."""
    host.process(2000, "D", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia3", "/dev/nvidia11", "/dev/nvidia3")
    assert host.poll(1) == ()
    assert host.poll(20) == (StuckProcess(since=1015.0, gpus=("11", "3")),)
    assert host.processes.contained is False
    assert not host.processes.denied
    assert not host.processes.read_errors.words


@pytest.mark.parametrize(
    "make",
    [
        lambda host: host.process(2000, "S", "/dev/nvidia3"),
        lambda host: host.process(2000, "D", "/dev/null", "/dev/nvme0"),
        lambda host: host.process(2000, "D", "/dev/nvidia3", parent=DAEMON),
        lambda host: host.process(2000, "D", "/dev/nvidia3", flags=0x208040),
        lambda host: host.process(2000, "Z", "/dev/nvidia3"),
    ],
    ids=["asleep as usual", "holds none", "the agent's own", "a kernel thread", "ended"],
)
def test_who_is_not_stuck(host: Host, make: Callable[[Host], None]) -> None:
    """Look as often as you like."""
    make(host)
    assert host.poll(5) == ()


def test_who_runs_now_and_then_is_not_stuck(host: Host) -> None:
    """A job that reads its data is in state D at nearly every look."""
    for ran in range(30):
        host.process(2000, "D", "/dev/nvidia3", ran=ran)
        assert host.poll(1) == ()


def test_who_comes_back_begins_anew(host: Host) -> None:
    """The next time is another."""
    host.process(2000, "D", "/dev/nvidia3")
    assert host.poll(4)
    host.process(2000, "S", "/dev/nvidia3")
    assert host.poll(1) == ()
    host.process(2000, "D", "/dev/nvidia3")
    assert host.poll(2) == (StuckProcess(since=host.now - 15, gpus=("3",)),)


def test_what_was_killed_and_cannot_end_is_stuck(host: Host) -> None:
    """Its first thread is gone, its files are closed: the stack of another thread leads into the driver."""
    stack = "[<0>] os_acquire_rwlock_write+0x35/0x40 [nvidia]\n[<0>] nvidia_close+0x1/0x2 [nvidia]"
    host.process(2000, "Z", threads={2000: "Z", 2001: "D", 2002: "S"}, stack=stack)
    assert host.poll() == (StuckProcess(since=1015.0),)


class Unprivileged(Tree):
    """What the kernel answers to a user who is not root, about files of others."""

    def link(self, path: str) -> str:
        if "/fd/" in path:
            raise PermissionError(13, "Permission denied", path)
        return super().link(path)


def test_other_peoples_processes_may_be_hidden(host: Host) -> None:
    """Without privileges: that is said, and is no trouble."""
    host.process(2000, "D", "/dev/nvidia3")
    processes = ProcessReader(lambda _: Unprivileged(host.root), clock=lambda: host.now)
    assert processes.poll() is None
    assert processes.denied
    assert processes.contained is False
    assert not processes.read_errors.words


def test_a_container_sees_its_own_processes(host: Host) -> None:
    """Its PID namespace is not the kernel's first."""
    (host.root / f"proc/{SELF}/ns/pid").unlink()
    host.link(f"proc/{SELF}/ns/pid", "pid:[4026532758]")
    assert host.poll() == ()
    assert host.processes.contained is True


def test_a_file_that_cannot_be_read_names_no_process(host: Host) -> None:
    """What is said of it can be read by everybody."""
    (host.root / "proc/2000/stat").mkdir(parents=True)
    assert host.poll() == ()
    assert host.processes.read_errors.words == "proc/*/stat: Is a directory"


def test_too_many_processes_are_named_as_such(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all are looked at."""
    monkeypatch.setattr("gpumon.collectors.links.processes.MAX_PROCESSES", 1)
    assert host.poll() == ()
    assert host.processes.read_errors.words == "proc: has more than 1 processes"
    assert MAX_PROCESSES > 10_000


def test_where_there_is_no_proc_nobody_can_tell(tmp_path: Path) -> None:
    """Nor when it was left aside because it does not answer, nor in a recording."""
    assert ProcessReader(lambda _: Tree(tmp_path)).poll() is None
    assert ProcessReader(lambda _: Tree(Path("/")), (COLLECTOR,)).poll() is None
    assert ProcessReader(lambda _: EmptyTree()).poll() is None


def test_this_host_can_be_looked_at() -> None:
    """Its real /proc, whoever runs the test."""
    processes = ProcessReader(lambda _: Tree(Path("/")))
    assert processes.poll() is None or not processes.denied
    assert processes.contained is not None
    assert not processes.read_errors.words


def test_a_scenario_holds_processes_fast(tmp_path: Path) -> None:
    """From one time to another, and with the GPUs that it names."""
    scenario = tmp_path / "scenario.yml"
    scenario.write_text("stuck_processes: [{gpus: [3, 4], since: 60, until: 300}, {gpus: [9]}]\n")
    with pytest.raises(SimulationError, match="no GPU 9; there are 0 to 7"):
        open_tree("h100x8", scenario=scenario, epoch=0.0)
    scenario.write_text("stuck_processes: [{gpus: [3, 4], since: 60, until: 300}]\n")
    now = 0.0
    tree = open_tree("h100x8", scenario=scenario, epoch=0.0, clock=lambda: now)
    processes = ProcessReader(lambda _: tree, clock=lambda: now)
    found = {}
    for now in (0.0, 59.0, 75.0, 90.0, 299.0, 301.0):
        found[now] = processes.poll()
    stuck = (StuckProcess(since=75.0, gpus=("3", "4")),)
    assert found == {0.0: (), 59.0: (), 75.0: (), 90.0: stuck, 299.0: stuck, 301.0: ()}
