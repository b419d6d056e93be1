"""`python -m benchmarks.owners`: what 50,000 processes and a kubelet that never answers cost, and what polls wait."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from agents import AgentProcess

from benchmarks.measures import percentiles
from gpumon.clock import boot_clock
from gpumon.collectors.host.owners import OwnerReader
from gpumon.collectors.host.reader import Tree, Trees, Turn
from gpumon.model.orders import HostOrders
from gpumon.supervisor.child_supervisor import MAX_LISTED, HostSupervisor
from gpumon.supervisor.loop import Loop

PROCESSES, GPUS, TURNS, POLLS = 50_000, 8, 10, 60
STAT = "{pid} (python3) S 1 0 0 0 0 0 0 0 0 0 0 700 300 0 0 20 0 1 0 {pid}"
CGROUP = "0::/system.slice/slurmstepd.scope/job_{pid}/step_0/user/task_0\n"
STATUS = "Name:\tpython3\nState:\tS (sleeping)\nUid:\t1000\t1000\t1000\t1000\n"


def write_processes(root: Path) -> None:
    """Write the files that the reader reads of each process."""
    for pid in range(1, PROCESSES + 1):
        folder = root / "proc" / str(pid)
        folder.mkdir(parents=True)
        for name, text in (("stat", STAT), ("cgroup", CGROUP), ("status", STATUS)):
            (folder / name).write_text(text.format(pid=pid))


def turn_times(root: Path, pids: Sequence[int], kubelet: str = "") -> list[float]:
    """Return the seconds of each turn of a new reader, every ten seconds of its clock."""
    reader, tree, orders = OwnerReader(), Tree(root), HostOrders(root=str(root), kubelet_socket=kubelet)
    turns = (
        Turn("owners", Trees(tree, tree, tree), orders, 10.0 * turn, pids=tuple(map(str, pids)))
        for turn in range(TURNS)
    )
    return [seconds(partial(reader, turn)) for turn in turns]


def seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def list_times() -> list[float]:
    """Return the seconds that the daemon needs at each tick to list the processes on the GPUs for the host child."""
    supervisor = HostSupervisor(Loop(), HostOrders(), on_message=lambda _: None, on_state=lambda _: None)
    gpus = [range(gpu, PROCESSES, GPUS) for gpu in range(GPUS)]
    return sorted(seconds(lambda: supervisor.list_processes({pid for pids in gpus for pid in pids})) for _ in range(50))


@contextlib.contextmanager
def silent_kubelet(path: Path) -> Iterator[str]:
    """Accept connections at this path and never answer."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield f"/{path.name}"


def poll_times(kubelet: Path) -> tuple[list[float], float]:
    """Return the seconds of the polls of an agent with this kubelet, and the longest time between two of them."""
    with tempfile.TemporaryDirectory() as folder:
        agent = AgentProcess(Path(folder), environment={"GPUMON_JOBS__KUBELET_SOCKET": str(kubelet)})
        agent.start()
        try:
            polls, last = dict[float, float](), boot_clock() + 2 * POLLS
            while len(polls) < POLLS and boot_clock() < last:
                page = agent.metrics()
                ended = page.value("gpumon_snapshot_timestamp_seconds") or 0.0
                polls[ended] = page.value("gpumon_poll_duration_seconds", tier="fast") or 0.0
                time.sleep(0.1)
        finally:
            agent.stop()
    ends = sorted(polls)
    return sorted(polls.values()), max(late - early for early, late in itertools.pairwise(ends))


def measure(root: Path) -> Iterator[tuple[str, str]]:
    """Yield what was measured, and the figures."""
    for pids in (range(1, MAX_LISTED + 1), range(1, PROCESSES + 1)):
        first, *later = turn_times(root, pids)
        yield f"turn of the reader, {len(pids)} processes", f"first {first * 1e3:.0f} ms, {percentiles(sorted(later))}"
    yield f"daemon lists {PROCESSES} processes on {GPUS} GPUs", percentiles(list_times())
    with silent_kubelet(root / "silent.sock") as silent:
        first, *later = turn_times(root, [], silent)
        yield "turn, the kubelet is silent", f"first {first * 1e3:.0f} ms, {percentiles(sorted(later))}"
        for name, kubelet in (("there is no kubelet", root / "none"), ("the kubelet is silent", root / silent[1:])):
            times, gap = poll_times(kubelet)
            yield f"polls of an agent, {name}", f"{percentiles(times)}, at most {gap:.2f} s apart"


def main() -> None:
    print(f"\n{PROCESSES} processes; {os.cpu_count()} cores; the host child reads the owners every 10 s")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket needs a short path
        write_processes(Path(folder))
        for name, figures in measure(Path(folder)):
            print(f"  {name:44}{figures}", flush=True)


if __name__ == "__main__":
    main()
