"""Ranks of jobs in /proc: child processes that have the threads and the environment of a rank, without torch."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from each_case import each_case

from gpumon.cli.hang.processes import LocalRank, absent, find_dump, find_ranks, process_evidence, select

RANK = """
import os, pathlib, sys, threading
def wait():
    pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("pt_gloo_runloop")
    print("ready", flush=True)
    sys.stdin.read()
if "EARLY" in os.environ:
    print("ready", flush=True)
    sys.stdin.read()
else:
    threading.Thread(target=wait).start()
"""


@contextlib.contextmanager
def running(environs: list[dict[str, str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Run processes with a thread of torch and these environments."""
    with contextlib.ExitStack() as ending:
        children = []
        for environ in environs:
            own = {name: text for name, text in os.environ.items() if not name.startswith(("SLURM", "CUDA"))} | environ
            child = subprocess.Popen(
                [sys.executable, "-I", "-c", RANK], env=own, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            ending.enter_context(child)
            ending.callback(child.kill)
            children.append(child)
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        yield children


def environ_of(rank: int, **more: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "4",
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "1",
        **more,
    }


def test_ranks_are_found_by_threads_and_environment() -> None:
    """A process without a rank, such as torchrun, is none."""
    environs = [
        environ_of(1, LOCAL_WORLD_SIZE="2", CUDA_VISIBLE_DEVICES="GPU-a,GPU-b"),
        {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "77", "MASTER_ADDR": "n2", "MASTER_PORT": "9"},
        {"MASTER_ADDR": "n1"},
    ]
    with running(environs) as children:
        found = {each.pid: each for each in find_ranks()[0]}
        first, second = (found[child.pid] for child in children[:2])
        assert children[2].pid not in found
    assert (first.rank, first.size, first.local_rank, first.local_size, first.gpu) == (1, 4, 1, 2, "GPU-b")
    assert (second.rank, second.size, second.gpu) == (3, 8, None)
    assert (first.job, second.job) == (f"job of user {os.getuid()}, rendezvous n1:1", "Slurm job 77, rendezvous n2:9")


@each_case("variable", ["HOME", "XDG_CACHE_HOME", "TORCH_FR_DUMP_TEMP_FILE"])
def test_the_dump_of_a_rank_is_found(variable: str, tmp_path: Path) -> None:
    """Where torch writes it by default, or where the job has it written. An empty file is no dump."""
    places = {"HOME": ".cache/torch/comm_lib_trace_rank_", "XDG_CACHE_HOME": "torch/comm_lib_trace_rank_"}
    prefix = tmp_path / places.get(variable, "mine_")
    value = tmp_path if variable in places else prefix
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with running([environ_of(1, **{"XDG_CACHE_HOME": "", variable: str(value)})]) as (child,):
        (rank,) = (each for each in find_ranks()[0] if each.pid == child.pid)
        file = Path(f"{prefix}1")
        file.touch()
        assert find_dump(rank) is None
        file.write_text("x")
        assert find_dump(rank) == file


def test_ranks_of_one_host_are_no_job_of_another_host() -> None:
    """A rendezvous at the loopback address is named with its host."""
    with running([environ_of(0, MASTER_ADDR="127.0.0.1")]) as (child,):
        (rank,) = (each for each in find_ranks()[0] if each.pid == child.pid)
    assert rank.job == f"job of user {os.getuid()}, rendezvous 127.0.0.1:1 of {socket.gethostname()}"


@each_case(
    "environ, gpu",
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "5,6"}, "/dev/nvidia6"),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "2,5,6", "SLURM_STEP_GPUS": "5-6"}, "/dev/nvidia6"),
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "5"}, "/dev/nvidia5"),
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "5,6"}, None),
        ({"SLURM_JOB_GPUS": "5,6"}, "/dev/nvidia6"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", "SLURM_JOB_GPUS": "5,6"}, "GPU-b"),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, "3"),
        ({"CUDA_VISIBLE_DEVICES": "3"}, "3"),
        ({"CUDA_VISIBLE_DEVICES": ""}, None),
        ({}, None),
    ],
)
def test_the_gpu_of_a_rank(environ: dict[str, str], gpu: str | None) -> None:
    """Numbers in CUDA_VISIBLE_DEVICES may be those in the cgroup of the job; Slurm's are those of device nodes."""
    with running([environ_of(1, **environ)]) as (child,):
        (rank,) = (each for each in find_ranks()[0] if each.pid == child.pid)
    assert rank.gpu == gpu


def test_a_rank_that_did_not_reach_torch_is_no_missing_rank() -> None:
    """Its process is found by its environment, unless another process has the rank and threads of torch."""
    with running([environ_of(0), environ_of(1, EARLY="1"), environ_of(0, EARLY="1")]) as children:
        found = {each.pid: each.rank for each in find_ranks()[0]}
        assert [found.get(child.pid) for child in children] == [0, 1, None]


def test_the_state_is_read_and_a_reused_pid_is_no_process() -> None:
    """The start time identifies the process."""
    with running([environ_of(0)]) as (child,):
        (rank,) = (each for each in find_ranks()[0] if each.pid == child.pid)
        assert process_evidence(rank).state == "S"
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert process_evidence(rank).state == "T"
        assert process_evidence(replace(rank, started="0")).state == "X"
    assert process_evidence(rank).state == "X"


POD = f"0::/kubepods.slice/kubepods-pod8f3b5c0f_1d2e_4a5b_9c8d_0123456789ab.slice/cri-containerd-{'a' * 64}.scope"
ROW = LocalRank(1 << 22, "1", 0, 0, 4, 0, 2, "job", "0::/", None)
"""A rank whose pid is above the limit of the kernel."""


@each_case(
    "changed, job, selected",
    [
        ({}, None, True),
        ({}, "5", False),
        ({"job": "Slurm job 5, rendezvous n1:1"}, "5", True),
        ({"cgroups": "0::/system.slice/slurmstepd.scope/job_5/step_0"}, "5", True),
        ({"cgroups": "0::/system.slice/slurmstepd.scope/job_51/step_0"}, "5", False),
        ({"cgroups": "0::/docker/3b5c0ffee"}, "3b5c", True),
        ({"cgroups": "0::/docker/3b5c0ffee"}, "/", False),
        ({"pid": os.getpid()}, str(os.getppid()), True),
        ({"pid": os.getppid()}, str(os.getpid()), False),
        ({"pid": os.getpid()}, f"slurm/{os.getppid()}", False),
        ({}, "user/0", True),
        ({}, f"user/{pwd.getpwuid(0).pw_name}", True),
        ({}, "user/1", False),
        ({"pid": os.getpid()}, f"user/{os.getppid()}", False),
        ({"cgroups": "0::/system.slice/jupyter-ann.service"}, "unit/jupyter-ann.service", True),
        ({"cgroups": POD, "host_name": "train"}, "pod/ml/train", True),
        ({"cgroups": POD, "host_name": "train"}, "pod/ml/train-1", False),
        ({"host_name": "train"}, "pod/ml/train", False),
    ],
)
def test_a_job_is_named_by_slurm_cgroup_or_process(
    changed: dict[str, str | int], job: str | None, *, selected: bool
) -> None:
    """A process names the job of its descendants too, as that of torchrun."""
    other = replace(ROW, rank=1)
    row = replace(ROW, **changed)  # type: ignore[arg-type]
    found = select([row, replace(other, job=row.job)], job)
    assert found == ({row.job: [row, replace(other, job=row.job)]} if selected else {})


@each_case(
    "ranks, missing",
    [
        ([(4, 0, 2)], [5]),
        ([(4, 0, 2), (5, 1, 2)], []),
        ([(4, 0, None)], []),
        ([(4, None, 2)], []),
        ([(4, 0, 2), (5, 0, 2)], []),
        ([(4, 0, 2), (5, 1, 4)], []),
    ],
)
def test_absent_ranks_follow_from_the_local_ranks(
    ranks: list[tuple[int, int | None, int | None]], missing: list[int]
) -> None:
    """Only if all ranks agree about the ranks of this host."""
    rows = [replace(ROW, rank=rank, local_rank=local, local_size=size) for rank, local, size in ranks]
    assert absent(rows) == missing
