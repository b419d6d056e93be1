"""ProcessReader finds processes that are stuck in state D with a GPU open, and no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpumon.collectors.links.files import Tree
from gpumon.collectors.links.processes import COLLECTOR, MAX_PROCESSES, ProcessReader
from gpumon.model.orders import SimulationError
from gpumon.model.snapshot import StuckProcess
from gpumon.sim.infiniband import EmptyTree, open_tree

DAEMON, SELF = 100, 101
HOST = "pid:[4026531836]"


class Host:
    """The /proc of a host, and a clock."""

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
        """Add a process with these threads, or with its first thread only."""
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
        """Poll every 15 seconds and return the last result."""
        stuck_processes: tuple[StuckProcess, ...] | None = ()
        for _ in range(times):
            self.now += 15
            stuck_processes = self.processes.poll()
        return stuck_processes


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_process_in_state_d_with_a_gpu_is_stuck(host: Host) -> None:
    """A stuck process has the time of its first poll in state D and the GPUs of its device nodes."""
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
def test_processes_that_are_not_stuck(host: Host, make: Callable[[Host], None]) -> None:
    """Processes in these states are never stuck, after any number of polls."""
    make(host)
    assert host.poll(5) == ()


def test_a_process_that_runs_between_polls_is_not_stuck(host: Host) -> None:
    """A process in state D that uses CPU time between polls, as a job that reads its data, is not stuck."""
    for ran in range(30):
        host.process(2000, "D", "/dev/nvidia3", ran=ran)
        assert host.poll(1) == ()


def test_a_process_stuck_again_has_a_new_start_time(host: Host) -> None:
    """A process that recovers and is stuck again has a new start time."""
    host.process(2000, "D", "/dev/nvidia3")
    assert host.poll(4)
    host.process(2000, "S", "/dev/nvidia3")
    assert host.poll(1) == ()
    host.process(2000, "D", "/dev/nvidia3")
    assert host.poll(2) == (StuckProcess(since=host.now - 15, gpus=("3",)),)


def test_a_killed_process_that_cannot_end_is_stuck(host: Host) -> None:
    """A killed process without open files is stuck if the stack of one of its threads is in the driver."""
    stack = "[<0>] os_acquire_rwlock_write+0x35/0x40 [nvidia]\n[<0>] nvidia_close+0x1/0x2 [nvidia]"
    host.process(2000, "Z", threads={2000: "Z", 2001: "D", 2002: "S"}, stack=stack)
    assert host.poll() == (StuckProcess(since=1015.0),)


class Unprivileged(Tree):
    """A tree that denies links to open files, as the kernel does for files of other users."""

    def link(self, path: str) -> str:
        if "/fd/" in path:
            raise PermissionError(13, "Permission denied", path)
        return super().link(path)


def test_processes_of_other_users_can_be_denied(host: Host) -> None:
    """Without privileges the result is unknown and the collector is denied, without a read error."""
    host.process(2000, "D", "/dev/nvidia3")
    processes = ProcessReader(lambda _: Unprivileged(host.root), clock=lambda: host.now)
    assert processes.poll() is None
    assert processes.denied
    assert processes.contained is False
    assert not processes.read_errors.words


def test_a_container_sees_its_own_processes(host: Host) -> None:
    """An agent in a PID namespace other than the first is contained."""
    (host.root / f"proc/{SELF}/ns/pid").unlink()
    host.link(f"proc/{SELF}/ns/pid", "pid:[4026532758]")
    assert host.poll() == ()
    assert host.processes.contained is True


def test_a_read_error_names_no_process(host: Host) -> None:
    """A read error has no PID, because every client can read it."""
    (host.root / "proc/2000/stat").mkdir(parents=True)
    assert host.poll() == ()
    assert host.processes.read_errors.words == "proc/*/stat: Is a directory"


def test_too_many_processes_are_an_error(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the maximum number of processes the reader reports an error."""
    monkeypatch.setattr("gpumon.collectors.links.processes.MAX_PROCESSES", 1)
    assert host.poll() == ()
    assert host.processes.read_errors.words == "proc: has more than 1 processes"
    assert MAX_PROCESSES > 10_000


def test_processes_are_unknown_without_proc(tmp_path: Path) -> None:
    """Without /proc, in quarantine, and in a recording the stuck processes are unknown."""
    assert ProcessReader(lambda _: Tree(tmp_path)).poll() is None
    assert ProcessReader(lambda _: Tree(Path("/")), (COLLECTOR,)).poll() is None
    assert ProcessReader(lambda _: EmptyTree()).poll() is None


def test_the_real_proc_can_be_read() -> None:
    """The real /proc can be read by any user."""
    processes = ProcessReader(lambda _: Tree(Path("/")))
    assert processes.poll() is None or not processes.denied
    assert processes.contained is not None
    assert not processes.read_errors.words


def test_a_scenario_simulates_stuck_processes(tmp_path: Path) -> None:
    """A scenario has stuck processes with its GPUs and for its period."""
    scenario = tmp_path / "scenario.yml"
    scenario.write_text("stuck_processes: [{gpus: [3, 4], since: 60, until: 300}, {gpus: [9]}]\n")
    with pytest.raises(SimulationError, match="no GPU 9; there are 0 to 7"):
        open_tree("h100x8", scenario=scenario, epoch=0.0)
    scenario.write_text("stuck_processes: [{gpus: [3, 4], since: 60, until: 300}]\n")
    now = 0.0
    tree = open_tree("h100x8", scenario=scenario, epoch=0.0, clock=lambda: now)
    processes = ProcessReader(lambda _: tree, clock=lambda: now)
    stuck_processes = {}
    for now in (0.0, 59.0, 75.0, 90.0, 299.0, 301.0):
        stuck_processes[now] = processes.poll()
    stuck = (StuckProcess(since=75.0, gpus=("3", "4")),)
    assert stuck_processes == {0.0: (), 59.0: (), 75.0: (), 90.0: stuck, 299.0: stuck, 301.0: ()}
