from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from changed_report import new_report
from each_case import each_case

from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.probe.core.preflight import may_run
from gpumon.probe.core.state import ProbeState
from gpumon.runner.gather_facts import OwnProcesses, foreign_processes, gather_facts
from gpumon.state.gpu_idle import is_in_use

OWN = OwnProcesses(pids=frozenset({71, 72}), gpus=("GPU-0", "GPU-1"))
NOT_YET_ON_GPUS = OwnProcesses(pids=frozenset({71, 72}))


def gpus_with_pids(*pids: tuple[int, ...] | None) -> tuple[GpuState, ...]:
    """Return GPUs with these processes; None means that the processes are unknown."""
    return tuple(
        GpuState(
            bus_id=str(n),
            uuid=f"GPU-{n}",
            index=n,
            gpu=Gpu(processes=None if processes is None else float(len(processes))),
            pids=processes,
        )
        for n, processes in enumerate(pids)
    )


@each_case(
    ("gpus", "own", "contained", "foreign_counts"),
    [
        (gpus_with_pids((71,), (72,)), OWN, False, [0, 0]),
        (gpus_with_pids((71,), (72, 4711)), OWN, False, [0, 1]),
        (gpus_with_pids((71,), (4711,)), OWN, False, [0, 1]),
        (gpus_with_pids((), (4711,)), NOT_YET_ON_GPUS, False, [0, 1]),
        (gpus_with_pids((71,), (4711,)), OWN, None, [0, 1]),
        (gpus_with_pids((900071,), (900072,)), OWN, True, [0, 0]),
        (gpus_with_pids((900071,), (900072, 904711)), OWN, True, [0, 1]),
        (gpus_with_pids((904711,), ()), NOT_YET_ON_GPUS, True, [1, 0]),
        (gpus_with_pids((71,), None), OWN, False, [0, None]),
        (gpus_with_pids((71,), (72,), (4711,)), OWN, False, [0, 0, 1]),
    ],
)
def test_own_ranks_are_not_foreign(
    gpus: tuple[GpuState, ...], own: OwnProcesses, *, contained: bool | None, foreign_counts: list[float | None]
) -> None:
    """Own ranks are recognized by pid, or as one process for each GPU if NVML reports pids of the host."""
    assert list(foreign_processes(gpus, own, contained=contained).values()) == foreign_counts


def test_load_right_after_a_run_is_ignored() -> None:
    """Utilization and traffic right after a run are ignored on its GPUs; used memory is not."""
    busy = Gpu(processes=0.0, utilization_ratio=1.0, memory_used_bytes=2e9)
    gpus = tuple(
        GpuState(bus_id=str(n), uuid=f"GPU-{n}", index=n, gpu=busy, link_rates={"nvlink_receive_bytes_total": 1e11})
        for n in range(2)
    )
    probe = ProbeState(loaded=("GPU-0",), loaded_until=103.0)
    report = new_report(gpus=gpus, probe=probe)

    first, second = gather_facts(report, 102.0).gpus
    assert (first.utilization, first.traffic, first.memory_used) == (None, None, 2e9)
    assert (second.utilization, second.traffic) == (1.0, 1e11)
    assert gather_facts(report, 103.0).gpus[0].utilization == 1.0


def test_a_skip_for_an_unread_store_names_the_error() -> None:
    unread = new_report(notices={"store": "/gpumon.db: it is not a store of gpumon; move it away"})
    skip = may_run(gather_facts(unread, 0.0))
    assert skip is not None
    assert (skip.reason, skip.hint.endswith("it is not a store of gpumon; move it away.")) == ("held", True)


def test_pages_of_the_kernel_on_grace_do_not_make_a_gpu_busy() -> None:
    """On a Grace host the kernel puts pages on the GPU, so memory in use without a process prevents no run."""
    for name, reason in [("NVIDIA GH200 480GB", None), ("NVIDIA H100 80GB HBM3", "busy")]:
        gpu = Gpu(name=name, processes=0.0, utilization_ratio=0.0, memory_used_bytes=9e9)
        states = tuple(GpuState(bus_id=str(n), uuid=f"GPU-{n}", index=n, gpu=gpu, pids=()) for n in range(2))
        skip = may_run(replace(gather_facts(new_report(gpus=states), 100.0), store_read=True))
        assert (skip and skip.reason) == reason, name
        assert is_in_use(gpu, None) is (reason is not None)


def test_a_latched_utilization_prevents_no_run() -> None:
    """On Blackwell a full utilization without process, memory in use and busy engines is no load; earlier it is."""
    for architecture, reason in [("Blackwell", None), ("Hopper", "busy")]:
        gpu = Gpu(architecture=architecture, processes=0.0, utilization_ratio=1.0, memory_used_bytes=0.0)
        states = tuple(GpuState(bus_id=str(n), uuid=f"GPU-{n}", index=n, gpu=gpu, pids=()) for n in range(2))
        skip = may_run(replace(gather_facts(new_report(gpus=states), 100.0), store_read=True))
        assert (skip and skip.reason) == reason, architecture


def test_page_cache_on_grace_leaves_no_memory_free() -> None:
    """On a Grace host little free memory prevents no run, because the kernel reclaims the page cache that holds it."""
    for name, reason in [("NVIDIA GB200", None), ("NVIDIA B200", "low_memory")]:
        gpu = Gpu(name=name, processes=0.0, utilization_ratio=0.0, memory_free_bytes=2e9)
        states = tuple(GpuState(bus_id=str(n), uuid=f"GPU-{n}", index=n, gpu=gpu, pids=()) for n in range(2))
        facts = gather_facts(new_report(gpus=states), 100.0)
        skip = may_run(replace(facts, store_read=True, memory_needed=8e9))
        assert (skip and skip.reason) == reason, name


def test_the_processes_that_hold_a_gpu_are_named() -> None:
    """The hint names a process, such as a display server that never ends; a pid of another namespace has no name."""
    gpu = Gpu(processes=2.0, utilization_ratio=0.0, memory_used_bytes=0.0)
    pids = (os.getpid(), 2**22 + 1)
    states = tuple(GpuState(bus_id=str(n), uuid=f"GPU-{n}", index=n, gpu=gpu, pids=pids) for n in range(2))
    skip = may_run(replace(gather_facts(new_report(gpus=states), 100.0), store_read=True))
    assert skip is not None
    assert f"GPU 0 has 2 processes ({Path('/proc/self/comm').read_text().strip()}, pid {os.getpid()})" in skip.hint
