"""Whether a run may begin or go on."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from changed_report import new_report
from each_case import each_case

from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.probe.core.preflight import (
    GIB,
    IDLE_BYTES,
    POLL_SECONDS,
    UNSEEN_SECONDS,
    GpuUse,
    PreflightFacts,
    algorithms,
    interruption,
    may_run,
    usable_gpus,
)
from gpumon.probe.core.result import SKIP_REASONS
from gpumon.probe.core.state import ProbeState
from gpumon.runner.gather_facts import OwnProcesses, foreign_processes, gather_facts
from gpumon.state.gpu_record import is_in_use


def gpus(*processes: float | None) -> tuple[GpuUse, ...]:
    return tuple(GpuUse(index=n, uuid=f"GPU-{n}", processes=count) for n, count in enumerate(processes))


FREE = PreflightFacts(gpus=gpus(0, 0), expected=2)


def with_second_gpu(**use: Any) -> PreflightFacts:
    """Return the facts of two free GPUs, of which the second has these fields."""
    first, second = FREE.gpus
    return replace(FREE, gpus=(first, replace(second, **use)))


def test_one_gpu_is_enough_for_ranks_that_act_alone() -> None:
    assert may_run(PreflightFacts(gpus=gpus(0), expected=1, alone=True)) is None


def test_a_host_without_gpus_may_be_probed() -> None:
    """A host that has no GPU and expects none runs the probe on its CPU."""
    assert may_run(PreflightFacts()) is None


@each_case(
    ("situation", "reason", "hint"),
    [
        (replace(FREE, gpus=gpus(0, 3)), "busy", "GPU 1 has 3 processes"),
        (replace(FREE, gpus=gpus(0, None)), "busy", "GPU 1"),
        (replace(FREE, expected=8), "busy", "6 of 8"),
        (replace(FREE, unkillable=(4711,)), "busy", "4711"),
        (replace(FREE, enabled=False), "disabled", "probe.enabled"),
        (replace(FREE, maintained=True), "maintenance", "gpumon maintenance end"),
        (with_second_gpu(mig=True), "mig", "GPU 1"),
        (with_second_gpu(compute_mode=3), "exclusive_mode", "nvidia-smi -c DEFAULT"),
        (with_second_gpu(compute_mode=2), "exclusive_mode", "no process may use GPU 1"),
        (
            replace(with_second_gpu(memory_free=4.5 * GIB), memory_needed=5.0 * GIB),
            "low_memory",
            "GPU 1 has 4.5 GiB free",
        ),
        (with_second_gpu(memory_used=0.4 * GIB, memory_exact=True), "busy", "GPU 1 has 0.4 GiB in use"),
        (with_second_gpu(traffic=2e9), "busy", "GPU 1 moves 2.0 GB/s"),
        (replace(FREE, scheduled=True, schedulers=("slurmd",)), "no_scheduler_gate", "slurmd"),
        (replace(FREE, scheduled=True, schedulers=None), "no_scheduler_gate", "probe.scheduler_gate"),
        (replace(FREE, min_idle_seconds=600.0), "busy", "probe.min_idle_seconds"),
        (replace(FREE, held="Held by 4711."), "held", "by 4711"),
        (replace(FREE, store_read=False), "held", "store has not been read"),
        (
            replace(FREE, store_read=False, store_error="/s.db: the disk is full; free space"),
            "held",
            "full; free space.",
        ),
        (PreflightFacts(gpus=gpus(0), expected=1), "single_gpu", "needs two GPUs"),
        (PreflightFacts(expected=1), "single_gpu", "needs two GPUs"),
    ],
)
def test_each_skip_has_its_reason_and_hint(situation: PreflightFacts, reason: str, hint: str) -> None:
    """Every check of the preflight skips with a listed reason and a hint with its evidence."""
    skip = may_run(situation)
    assert skip is not None
    assert (skip.reason, hint in skip.hint) == (reason, True)
    assert skip.reason in SKIP_REASONS


def test_a_gpu_that_does_not_answer_is_named_with_its_fault() -> None:
    """A GPU that does not answer counts as busy, and the hint names it with its fault."""
    lost = GpuUse(index=3, uuid="GPU-3", processes=None, fault="lost")
    skip = may_run(PreflightFacts(gpus=(*gpus(0, 0, 0), lost), expected=4))
    assert skip is not None
    assert "GPU 3 (lost)" in skip.hint


def test_a_simulated_node_is_guarded_by_its_simulated_processes() -> None:
    """On a simulated node a single GPU allows a run, and a simulated process prevents it."""
    assert may_run(PreflightFacts(gpus=gpus(0), expected=1, simulated=True)) is None
    skip = may_run(PreflightFacts(gpus=gpus(1), expected=1, simulated=True))
    assert skip is not None
    assert skip.reason == "busy"


@pytest.mark.parametrize("simulated", [False, True])
@pytest.mark.parametrize(
    ("sign", "hint"),
    [({"utilization": 0.06}, "GPU 1 is 6% utilized"), ({"memory_used": 3.0 * IDLE_BYTES}, "GPU 1 has 3.0 GiB in use")],
)
def test_utilization_or_memory_without_a_process_is_busy(sign: dict[str, Any], hint: str, *, simulated: bool) -> None:
    first, second = gpus(0, 0)
    skip = may_run(replace(FREE, gpus=(first, replace(second, **sign)), simulated=simulated))
    assert skip is not None
    assert (skip.reason, hint in skip.hint) == ("busy", True)


def test_a_hint_names_some_gpus_and_counts_the_others() -> None:
    working = tuple(replace(gpu, utilization=0.3, traffic=9.1e9) for gpu in gpus(*[0] * 8))
    skip = may_run(replace(FREE, gpus=working, expected=8))
    assert skip is not None
    described = [f"GPU {index} is 30% utilized and moves 9.1 GB/s over its links" for index in range(4)]
    assert skip.hint.startswith(", ".join(described) + " and 4 more, though")


def test_an_idle_gpu_is_not_busy() -> None:
    """A GPU with a utilization up to that of a poll is idle, even if the driver's own memory counts as used."""
    idle = tuple(replace(gpu, utilization=0.05, memory_used=0.6 * IDLE_BYTES) for gpu in gpus(0, 0))
    assert may_run(replace(FREE, gpus=idle)) is None


@each_case(
    "ready",
    [
        FREE,
        replace(FREE, schedulers=("slurmd",)),
        replace(FREE, scheduled=True, schedulers=("slurmd",), gated=True),
        replace(FREE, scheduled=True, schedulers=("kubelet",), simulated=True),
        replace(FREE, min_idle_seconds=600.0, gpus=tuple(replace(gpu, idle_seconds=600.0) for gpu in FREE.gpus)),
        replace(with_second_gpu(mig=True, compute_mode=3, memory_free=0.0), simulated=True, memory_needed=5.0 * GIB),
        with_second_gpu(compute_mode=0, memory_free=80.0 * GIB, traffic=1e6),
    ],
)
def test_harmless_conditions_allow_a_run(ready: PreflightFacts) -> None:
    """A run may start by request, with a gate, after enough idleness, and on the CPU despite GPU settings."""
    assert may_run(ready) is None
    assert usable_gpus(ready) == ("GPU-0", "GPU-1")


def test_too_little_idleness_gives_the_time_to_wait() -> None:
    short = tuple(replace(gpu, idle_seconds=seconds) for gpu, seconds in zip(gpus(0, 0), (600.0, 480.0), strict=True))
    skip = may_run(replace(FREE, gpus=short, min_idle_seconds=600.0))
    assert skip is not None
    assert (skip.wait, "GPU 1 480 s" in skip.hint, "GPU 0" in skip.hint) == (120.0, True, False)
    busy = may_run(replace(FREE, gpus=gpus(0, 1), min_idle_seconds=600.0))
    assert busy is not None
    assert busy.wait is None


@pytest.mark.parametrize(
    ("situation", "wanted"),
    [
        (replace(FREE, gpus=gpus(0, 1, 0, 0), expected=4), ("GPU-0", "GPU-2", "GPU-3")),
        (replace(FREE, gpus=gpus(0, None, 0), expected=3), ("GPU-0", "GPU-2")),
        (replace(FREE, gpus=gpus(0, 0), expected=4), ("GPU-0", "GPU-1")),
        (FREE, ("GPU-0", "GPU-1")),
    ],
)
def test_a_partial_run_uses_the_idle_gpus(situation: PreflightFacts, wanted: tuple[str, ...]) -> None:
    opted_in = replace(situation, partial=True)
    assert (may_run(opted_in), usable_gpus(opted_in)) == (None, wanted)
    assert (may_run(situation) is None) == (situation is FREE)


@pytest.mark.parametrize(
    "situation", [with_second_gpu(processes=1.0), replace(FREE, gpus=gpus(0, 0, 1), enabled=False)]
)
def test_a_partial_run_needs_two_idle_gpus(situation: PreflightFacts) -> None:
    assert may_run(replace(situation, partial=True)) == may_run(situation) is not None


def test_a_foreign_process_interrupts_a_run() -> None:
    own = tuple(replace(gpu, foreign=0.0, utilization=1.0, memory_used=8.0 * IDLE_BYTES) for gpu in gpus(1, 1))
    assert interruption(PreflightFacts(gpus=own)) is None
    taken = PreflightFacts(gpus=(own[0], replace(own[1], processes=2.0, foreign=1.0)))
    skip = interruption(taken)
    assert skip is not None
    assert (skip.reason, "GPU 1" in skip.hint, "GPU 0" in skip.hint) == ("busy", True, False)
    assert interruption(taken, ("GPU-0",)) is None


def test_a_run_is_interrupted_if_its_gpus_are_not_read() -> None:
    """A run is interrupted if the processes of one of its GPUs have not been read for longer than polls take."""
    stuck = replace(
        with_second_gpu(processes=None, fault="stuck"), unobserved={"GPU-0": 0.0, "GPU-1": UNSEEN_SECONDS + 2.5}
    )
    skip = interruption(stuck, ("GPU-0", "GPU-1"))
    assert skip is not None
    assert (skip.reason, "For 8 s" in skip.hint, "on GPU 1 (stuck) were not read:" in skip.hint) == ("busy", True, True)
    assert interruption(replace(stuck, poll_seconds=3.0)) is None
    assert (
        interruption(replace(stuck, unobserved={"GPU-1": UNSEEN_SECONDS + POLL_SECONDS + 1}, poll_seconds=60.0))
        is not None
    )
    gone = interruption(replace(FREE, unobserved={"GPU-7": 60.0}))
    assert gone is not None
    assert "on GPU-7 were not read:" in gone.hint


def test_any_load_on_a_simulated_node_interrupts_a_run() -> None:
    """On a simulated node any load interrupts a run, because its ranks do not appear there."""
    for taken in (with_second_gpu(foreign=1.0), with_second_gpu(utilization=0.5)):
        skip = interruption(replace(taken, simulated=True))
        assert skip is not None
        assert (skip.reason, "GPU 1" in skip.hint) == ("busy", True)


@each_case(
    ("situation", "chosen", "wanted"),
    [
        (FREE, (), ()),
        (FREE, ("default",), ("default",)),
        (replace(FREE, clique=True), (), ("ring",)),
        (replace(FREE, clique=True), ("default",), ("default",)),
        (replace(FREE, gpus=gpus(0, 1, 0), expected=3, partial=True), ("default", "ring"), ("ring",)),
        (replace(FREE, clique=True, alone=True), (), ()),
    ],
)
def test_beside_jobs_only_the_ring_is_measured(
    situation: PreflightFacts, chosen: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    """A partial run measures only the ring; a run in a multi-node clique too, unless algorithms are configured."""
    assert algorithms(situation, chosen) == wanted


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


def test_the_processes_that_hold_a_gpu_are_named() -> None:
    """The hint names a process, such as a display server that never ends; a pid of another namespace has no name."""
    gpu = Gpu(processes=2.0, utilization_ratio=0.0, memory_used_bytes=0.0)
    pids = (os.getpid(), 2**22 + 1)
    states = tuple(GpuState(bus_id=str(n), uuid=f"GPU-{n}", index=n, gpu=gpu, pids=pids) for n in range(2))
    skip = may_run(replace(gather_facts(new_report(gpus=states), 100.0), store_read=True))
    assert skip is not None
    assert f"GPU 0 has 2 processes ({Path('/proc/self/comm').read_text().strip()}, pid {os.getpid()})" in skip.hint


IDLE = Gpu(processes=0.0, utilization_ratio=0.0, memory_used_bytes=0.0)
GRACE = replace(IDLE, name="NVIDIA GH200 480GB")
H100 = replace(IDLE, name="NVIDIA H100 80GB HBM3")


@each_case(
    ("gpu", "reason"),
    [
        (replace(GRACE, memory_used_bytes=9e9), None),
        (replace(H100, memory_used_bytes=9e9), "busy"),
        (replace(IDLE, architecture="Blackwell", utilization_ratio=1.0), None),
        (replace(IDLE, architecture="Hopper", utilization_ratio=1.0), "busy"),
        (replace(GRACE, memory_used_bytes=None, memory_free_bytes=2e9), None),
        (replace(H100, memory_used_bytes=None, memory_free_bytes=2e9), "low_memory"),
    ],
)
def test_what_is_not_used_by_a_process_may_be_no_load(gpu: Gpu, reason: str | None) -> None:
    """On Grace the kernel puts pages and its page cache on the GPU; on Blackwell a full utilization may be latched."""
    states = tuple(GpuState(bus_id=str(n), uuid=f"GPU-{n}", index=n, gpu=gpu, pids=()) for n in range(2))
    skip = may_run(replace(gather_facts(new_report(gpus=states), 100.0), store_read=True, memory_needed=8e9))
    assert (skip and skip.reason) == reason
    if gpu.memory_used_bytes:
        assert is_in_use(gpu, None) is (reason is not None)
