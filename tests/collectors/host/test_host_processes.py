"""ProcessReader finds processes that are stuck in state D with a GPU open, and no others."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from gpumon_sim.infiniband import FileTree, open_tree
from reader_turns import Turns

from gpumon.collectors.host.processes import MAX_PROCESSES, ProcessReader
from gpumon.collectors.host.reader import Tree
from gpumon.model.orders import SimulationError
from gpumon.model.snapshot import ProcessReadings, StuckProcess

DAEMON, SELF = 100, 101
FORGED = "7"
HOST = "pid:[4026531836]"


class DeviceTree(Tree):
    """A tree in which the names of NVIDIA devices lead to devices, except one that a process has made itself."""

    def device(self, path: str) -> tuple[int, int] | None:
        name = self.link(path).removeprefix("/dev/nvidia")
        if name == FORGED:
            return None
        return (504, 0) if name == "-uvm" else (195, int(name) if name.isdecimal() else 255)


class ProcHost:
    """The /proc of a host."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.process(1, "S", parent=0)
        self.process(DAEMON, "S")
        self.process(SELF, "S", parent=DAEMON)
        self.link("proc/self", str(SELF))
        self.link(f"proc/{SELF}/ns/pid", HOST)
        self.processes = Turns[ProcessReadings](ProcessReader(), DeviceTree(folder))
        self.last = ProcessReadings()
        (folder / "proc/devices").write_text("Character devices:\n  1 mem\n195 nvidia-frontend\n504 nvidia-uvm\n")

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
        stack: str | None = "[<0>] os_acquire_mutex+0x35/0x40 [nvidia]",
        wchan: str = "0",
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
            (task / "wchan").write_text(wchan)
            if stack is not None:
                (task / "stack").write_text(stack)
            for number, device in enumerate(("/dev/null", *devices) if its_state == "D" else ()):
                if not (task / "fd" / str(number)).is_symlink():
                    self.link(f"proc/{pid}/task/{thread}/fd/{number}", device)
        (folder / "stat").write_text(stat(pid, state))

    def poll(self, times: int = 2) -> tuple[StuckProcess, ...] | None:
        """Poll every 15 seconds and return the last result."""
        for _ in range(times):
            self.last = self.processes.poll()
        return self.last.stuck


@pytest.fixture
def host(tmp_path: Path) -> ProcHost:
    return ProcHost(tmp_path)


def test_a_process_in_state_d_with_a_gpu_is_stuck(host: ProcHost) -> None:
    host.process(2000, "D", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia3", "/dev/nvidia11", "/dev/nvidia3")
    assert host.poll(1) == ()
    assert host.poll(20) == (StuckProcess(since=1015.0, gpus=("11", "3"), in_driver=True),)
    assert host.last.contained is False
    assert not host.processes.errors.denied
    assert not host.processes.errors.words


NFS = "[<0>] rpc_wait_bit_killable+0x24/0xa0 [sunrpc]\n[<0>] nfs4_proc_getattr+0x1/0x2 [nfsv4]"


@pytest.mark.parametrize(
    ("stack", "wchan", "in_driver"),
    [
        (NFS, "0", False),
        ("[<0>] down_read+0x1/0x2", "os_acquire_rwlock_read", False),
        (None, "rpc_wait_bit_killable", False),
        (None, "request_wait_answer", False),
        (None, "nvme_wait_freeze", None),
        (None, "rwsem_down_read_slowpath", None),
        (None, "0", None),
        (None, "uvm_va_space_stop_all_user_channels", True),
        (None, "_nv044242rm", True),
        (None, "os_acquire_semaphore", True),
    ],
)
def test_a_stuck_process_is_in_the_driver_or_elsewhere(
    host: ProcHost, stack: str | None, wchan: str, *, in_driver: bool | None
) -> None:
    """The kernel stack decides whether a process waits in the driver; without it, the function in which it sleeps."""
    host.process(2000, "D", "/dev/nvidia3", stack=stack, wchan=wchan)
    assert host.poll() == (StuckProcess(since=1015.0, gpus=("3",), in_driver=in_driver),)


def test_a_stuck_process_can_enter_the_driver(host: ProcHost) -> None:
    """A process that waits for a file system counts as in the driver when another of its threads is."""
    host.process(2000, "D", "/dev/nvidia3", stack=NFS, threads={2000: "D", 2001: "D"})
    assert [process.in_driver for process in host.poll() or ()] == [False]
    (host.root / "proc/2000/task/2001/stack").write_text("[<0>] os_acquire_mutex+0x35/0x40 [nvidia]")
    assert [process.in_driver for process in host.poll() or ()] == [True]


@pytest.mark.parametrize(
    "make",
    [
        lambda host: host.process(2000, "S", "/dev/nvidia3"),
        lambda host: host.process(2000, "D", "/dev/null", "/dev/nvme0", stack=None),
        lambda host: host.process(2000, "D", "/dev/nvidia3", parent=DAEMON),
        lambda host: host.process(2000, "D", "/dev/nvidia3", flags=0x208040),
        lambda host: host.process(2000, "Z", "/dev/nvidia3"),
        lambda host: host.process(2000, "D", f"/dev/nvidia{FORGED}", stack=None),
        lambda host: host.process(2000, "D", "/dev/nvidia3", stack="[<0>] kernel_clone+0x1af/0x3e0"),
        lambda host: host.process(2000, "D", "/dev/nvidia3", stack="[<0>] __refrigerator+0x1/0x2"),
        lambda host: host.process(2000, "D", "/dev/nvidia3", stack=None, wchan="kernel_clone"),
        lambda host: host.process(2000, "D", "/dev/nvidia3", stack=None, wchan="__refrigerator"),
    ],
    ids=[
        "asleep as usual",
        "holds none",
        "the agent's own",
        "a kernel thread",
        "ended",
        "a file named like a GPU",
        "vfork",
        "frozen",
        "vfork, without stacks",
        "frozen, without stacks",
    ],
)
def test_processes_that_are_not_stuck(host: ProcHost, make: Callable[[ProcHost], None]) -> None:
    """ProcessReadings in these states are never stuck, after any number of polls."""
    make(host)
    assert host.poll(5) == ()


def test_a_process_that_runs_between_polls_is_not_stuck(host: ProcHost) -> None:
    """A process in state D that uses CPU time between polls, as a job that reads its data, is not stuck."""
    for ran in range(30):
        host.process(2000, "D", "/dev/nvidia3", ran=ran)
        assert host.poll(1) == ()


def test_a_process_stuck_again_has_a_new_start_time(host: ProcHost) -> None:
    host.process(2000, "D", "/dev/nvidia3")
    assert host.poll(4)
    host.process(2000, "S", "/dev/nvidia3")
    assert host.poll(1) == ()
    host.process(2000, "D", "/dev/nvidia3")
    assert host.poll(2) == (StuckProcess(since=host.processes.at - 15, gpus=("3",), in_driver=True),)


def test_a_killed_process_that_cannot_end_is_stuck(host: ProcHost) -> None:
    """A killed process without open files is stuck, once, if the stack of one of its threads is in the driver."""
    stack = "[<0>] os_acquire_rwlock_write+0x35/0x40 [nvidia]\n[<0>] nvidia_close+0x1/0x2 [nvidia]"
    host.process(2000, "Z", threads={2000: "Z", 2001: "D", 2002: "S", 2003: "D"}, stack=stack)
    assert host.poll() == (StuckProcess(since=1015.0, in_driver=True),)


class Unprivileged(Tree):
    """A tree that denies links to open files, as the kernel does for files of other users."""

    def link(self, path: str) -> str:
        if "/fd/" in path:
            raise PermissionError(13, "Permission denied", path)
        return super().link(path)


def test_a_thread_that_waits_for_one_in_the_driver_is_stuck(host: ProcHost) -> None:
    """A process counts if any of its threads sleeps in the driver, and if its stacks cannot be read."""
    host.process(2000, "D", "/dev/nvidia3", threads={2000: "D", 2001: "D"}, stack="[<0>] rwsem_down_read_slowpath+0x1")
    (host.root / "proc/2000/task/2001/stack").write_text("[<0>] os_acquire_mutex+0x35/0x40 [nvidia]")
    host.process(3000, "D", "/dev/nvidia4", stack=None)
    assert host.poll() == (
        StuckProcess(since=1015.0, gpus=("3",), in_driver=True),
        StuckProcess(since=1015.0, gpus=("4",)),
    )


VFORK = """
import ctypes, os, sys
pid = f"{os.getpid()}{os.linesep}".encode()
file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
if ctypes.CDLL(None).syscall(58) == 0:
    ctypes.CDLL(None).write(1, pid, len(pid))
    ctypes.CDLL(None).pause()
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or platform.machine() != "x86_64" or not Path("/usr/bin/python3").exists(),
    reason="needs root, x86 and a Python that other users can start",
)
def test_a_vfork_with_a_file_named_like_a_gpu_is_not_stuck() -> None:
    """An unprivileged user who opens a file /dev/nvidia3 of a private mount and waits in vfork is not stuck."""
    inside = 'mount -t tmpfs none /dev && exec /usr/bin/python3 -I -c "$0" /dev/nvidia3'
    grandchild = 'unshare -Urm sh -c "$0" "$1" & wait'  # the reader leaves out its own children
    with subprocess.Popen(
        ["/bin/sh", "-c", grandchild, inside, VFORK],
        user=65534,
        group=65534,
        extra_groups=[],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            attacker = process.stdout.readline().decode().strip()
            if not attacker:
                pytest.skip("this host does not let users mount")
            state = Path(f"/proc/{attacker}/stat").read_text().rpartition(")")[2].split()[0]
            assert (state, Path(f"/proc/{attacker}/fd/3").readlink()) == ("D", Path("/dev/nvidia3"))
            for tree in (ThisHost(Path("/")), WithoutStacks(Path("/"))):
                processes = Turns[ProcessReadings](ProcessReader(), tree)
                assert [processes.poll().stuck for _ in range(3)] == [(), (), ()]
        finally:
            os.killpg(process.pid, signal.SIGKILL)


class ThisHost(Tree):
    """The files of this host, also in a container that denies those of its first process."""

    def link(self, path: str) -> str:
        return super().link(path.replace("proc/1/fd", "proc/self/fd"))


class WithoutStacks(ThisHost):
    """A tree in which every file is a device, and stacks are denied as to an agent that is not root."""

    def device(self, _path: str) -> tuple[int, int] | None:
        return 195, 3

    def read(self, path: str) -> str:
        if path.endswith("/stack"):
            raise PermissionError(13, "Permission denied", path)
        return "195 nvidia" if path == "proc/devices" else super().read(path)


def test_devices_of_the_host_have_numbers() -> None:
    """A device node has a major and a minor number, and another file has none."""
    assert Tree(Path("/")).device("dev/null") == (1, 3)
    assert Tree(Path("/")).device("dev") is None


def test_processes_of_other_users_can_be_denied(host: ProcHost) -> None:
    """Without privileges the result is unknown and the collector is denied, without a read error."""
    host.process(2000, "D", "/dev/nvidia3")
    processes = Turns[ProcessReadings](ProcessReader(), Unprivileged(host.root))
    assert processes.poll() == ProcessReadings(contained=False, fabric_manager=False)
    assert processes.errors.denied
    assert not processes.errors.words


def test_a_container_sees_its_own_processes(host: ProcHost) -> None:
    """An agent in a PID namespace other than the first is contained."""
    (host.root / f"proc/{SELF}/ns/pid").unlink()
    host.link(f"proc/{SELF}/ns/pid", "pid:[4026532758]")
    assert host.poll() == ()
    assert host.last.contained is True


def test_whether_the_agent_is_contained_is_unknown_without_its_pid_namespace(host: ProcHost) -> None:
    (host.root / f"proc/{SELF}/ns/pid").unlink()
    host.poll()
    assert host.last.contained is None


def test_a_read_error_names_no_process(host: ProcHost) -> None:
    """A read error has no PID, because every client can read it."""
    (host.root / "proc/2000/stat").mkdir(parents=True)
    assert host.poll() == ()
    assert host.processes.errors.words == "proc/*/stat: Is a directory"


def test_too_many_processes_are_an_error(host: ProcHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the maximum number of processes the reader reports an error."""
    monkeypatch.setattr("gpumon.collectors.host.processes.MAX_PROCESSES", 1)
    assert host.poll() == ()
    assert host.processes.errors.words == "proc: has more than 1 processes"
    assert MAX_PROCESSES > 10_000


def test_processes_are_unknown_without_proc(tmp_path: Path) -> None:
    for tree in (Tree(tmp_path), FileTree()):
        assert Turns[ProcessReadings](ProcessReader(), tree).poll() == ProcessReadings()


def test_the_real_proc_can_be_read() -> None:
    processes = Turns[ProcessReadings](ProcessReader(), Tree(Path("/")))
    value = processes.poll()
    assert value.stuck is None or not processes.errors.denied
    assert value.contained is not None
    assert not processes.errors.words


def test_a_scenario_simulates_stuck_processes(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yml"
    scenario.write_text("stuck_processes: [{gpus: [3, 4], since: 60, until: 300}, {gpus: [9]}]\n")
    with pytest.raises(SimulationError, match="no GPU 9; there are 0 to 7"):
        open_tree("h100x8", scenario=scenario, epoch=0.0)
    scenario.write_text("stuck_processes: [{gpus: [3, 4], since: 60, until: 300}]\n")
    now = 0.0
    tree = open_tree("h100x8", scenario=scenario, epoch=0.0, clock=lambda: now)
    processes = Turns[ProcessReadings](ProcessReader(), tree)
    processes.at = now
    stuck_processes = {}
    for now in (0.0, 59.0, 75.0, 90.0, 299.0, 301.0):
        stuck_processes[now] = processes.poll(after=now - processes.at).stuck
    stuck = (StuckProcess(since=75.0, gpus=("3", "4"), in_driver=True),)
    assert stuck_processes == {0.0: (), 59.0: (), 75.0: (), 90.0: stuck, 299.0: stuck, 301.0: ()}


@pytest.mark.parametrize(("name", "uid", "found"), [("nv-fabricmanage", 0, True), ("nv-fabricmanage", 1000, False)])
def test_a_fabric_manager_of_root_is_found_by_its_name(host: ProcHost, name: str, uid: int, found: bool) -> None:  # noqa: FBT001 - a table
    """In a container too. Any user may give a process that name."""
    host.process(200, "S")
    host.poll()
    assert host.last.fabric_manager is False
    stat = host.root / "proc/200/stat"
    stat.write_text(stat.read_text().replace("a) name", name))
    (host.root / "proc/200/status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    host.poll()
    assert host.last.fabric_manager is found
    stat.write_text(stat.read_text().replace(f"({name}) S", f"({name}) Z"))
    host.poll()
    assert host.last.fabric_manager is False, "it has ended, and its parent has not taken note"


@pytest.mark.parametrize(("hidden", "found"), [(False, True), (True, None)])
def test_a_fabric_manager_is_found_without_permissions(host: ProcHost, hidden: bool, found: bool | None) -> None:  # noqa: FBT001 - a table
    """Any user may read names and states, unless /proc is mounted with hidepid=2, where even process 1 is hidden."""
    host.process(200, "S")
    stat = host.root / "proc/200/stat"
    stat.write_text(stat.read_text().replace("a) name", "nv-fabricmanage"))
    (host.root / "proc/200/status").write_text("Name:\tnv-fabricmanage\nUid:\t0\t0\t0\t0\n")
    if hidden:
        shutil.rmtree(host.root / "proc/200")
        shutil.rmtree(host.root / "proc/1")
    processes = Turns[ProcessReadings](ProcessReader(), Unprivileged(host.root))
    value = processes.poll()
    assert value.stuck is None
    assert processes.errors.denied
    assert value.fabric_manager is found
