"""Starts a gloo job with a fault on this host, and waits until the fault is in effect."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpumon.cli.hang.dump import load, recording
from gpumon.cli.hang.evidence import ReadError, Recording
from gpumon.cli.hang.worker_server import ask

FAULT_SECONDS = 60.0
SIGNALS: Mapping[str, signal.Signals] = {"stopped": signal.SIGSTOP, "killed": signal.SIGKILL}
FAULTS = ("stopped", "killed", "slow", "raising", "exiting", "sleeping", "gil", "order", "send")


@dataclass(frozen=True, slots=True)
class GlooJob:
    """A running job. Its ranks are child processes of this one."""

    folder: Path
    ranks: tuple[subprocess.Popen[str], ...]

    def recording(self, rank: int) -> Recording:
        return recording(load(ask(self.folder / f"{rank}.sock", "POST", "fr_trace_json")))

    def wait_for_hang(self, culprit: int) -> None:
        """Return as soon as all ranks but the culprit wait in a collective, or one has ended."""
        deadline = time.monotonic() + FAULT_SECONDS
        others = [rank for rank in range(len(self.ranks)) if rank != culprit]
        while time.monotonic() < deadline:
            with contextlib.suppress(ReadError):
                before = [self.recording(rank) for rank in others]
                time.sleep(0.5)
                after = [self.recording(rank) for rank in others]
                if [each.position for each in before] == [each.position for each in after] and before[0].operations:
                    return
        raise TimeoutError("the job did not hang")


@contextlib.contextmanager
def gloo_job(fault: str, culprit: int, size: int, seed: int, *, server: bool = True) -> Iterator[GlooJob]:
    """Start a job with a fault, wait until it is in effect, and end the job at the end of the context."""
    with tempfile.TemporaryDirectory(prefix="gloo") as name, contextlib.ExitStack() as ending:
        folder = Path(name)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        arguments = [fault, str(culprit), str(seed)]
        ranks = tuple(_start(folder, arguments, _environ(rank, size, port, server=server)) for rank in range(size))
        for each in ranks:
            ending.callback(_end, each)
        job = GlooJob(folder, ranks)
        for rank, each in enumerate(ranks):
            _await_line(each, "ready" if rank == culprit else "running")
        if fault in SIGNALS:
            ranks[culprit].send_signal(SIGNALS[fault])
        if fault == "killed":
            ranks[culprit].wait()
        if fault != "slow" and server:
            job.wait_for_hang(culprit)
        yield job


def _environ(rank: int, size: int, port: int, *, server: bool) -> dict[str, str]:
    """Return the environment that torchrun gives to a rank, and the path of the socket of its worker server."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    texts = {name: str(value) for name, value in own.items()}
    texts |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return texts | ({"WORKER_SOCKET": f"{rank}.sock"} if server else {})


def _start(folder: Path, arguments: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).with_name("rank.py").resolve()), *arguments]
    with (folder / f"{environ['RANK']}.log").open("w") as log:
        own = os.environ | environ
        return subprocess.Popen(command, env=own, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True)


def _await_line(rank: subprocess.Popen[str], wanted: str) -> None:
    for line in rank.stdout or ():
        if line.strip() == wanted:
            return
    raise RuntimeError(f"a rank ended before it was {wanted}")


def _end(rank: subprocess.Popen[str]) -> None:
    rank.kill()
    rank.wait()
    if rank.stdout is not None:
        rank.stdout.close()
