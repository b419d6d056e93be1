from __future__ import annotations

from each_case import each_case

from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.probe.core.preflight import may_run
from gpumon.probe.core.state import ProbeState
from gpumon.probe.runner.gather_facts import OwnProcesses, foreign_processes, gather_facts
from gpumon.state.report import Report

OURS = OwnProcesses(pids=frozenset({71, 72}), gpus=("GPU-0", "GPU-1"))
YET_TO_COME = OwnProcesses(pids=frozenset({71, 72}))


def held(*pids: tuple[int, ...] | None) -> tuple[GpuState, ...]:
    """GPUs that these processes hold; None of one of which it is not known."""
    return tuple(
        GpuState(
            bus_id=str(n),
            uuid=f"GPU-{n}",
            index=n,
            gpu=Gpu(processes=None if one is None else float(len(one))),
            pids=one,
        )
        for n, one in enumerate(pids)
    )


@each_case(
    ("gpus", "own", "contained", "strangers"),
    [
        (held((71,), (72,)), OURS, False, [0, 0]),
        (held((71,), (72, 4711)), OURS, False, [0, 1]),
        (held((71,), (4711,)), OURS, False, [0, 1]),
        (held((), (4711,)), YET_TO_COME, False, [0, 1]),
        (held((71,), (4711,)), OURS, None, [0, 1]),
        (held((900071,), (900072,)), OURS, True, [0, 0]),
        (held((900071,), (900072, 904711)), OURS, True, [0, 1]),
        (held((904711,), ()), YET_TO_COME, True, [1, 0]),
        (held((71,), None), OURS, False, [0, None]),
        (held((71,), (72,), (4711,)), OURS, False, [0, 0, 1]),
    ],
)
def test_our_own_ranks_are_no_strangers(
    gpus: tuple[GpuState, ...], own: OwnProcesses, *, contained: bool | None, strangers: list[float | None]
) -> None:
    """By pid where NVML's are ours; in a container that shows the host's, one rank a GPU, once it may be there."""
    assert list(foreign_processes(gpus, own, contained=contained).values()) == strangers


def test_what_a_run_leaves_behind_for_a_moment_is_nobodys_work() -> None:
    """A person who asks again at once is not told that the GPUs are in use; who holds them still counts."""
    busy = Gpu(processes=0.0, utilization_ratio=1.0, memory_used_bytes=2e9)
    gpus = tuple(GpuState(bus_id=str(n), uuid=f"GPU-{n}", index=n, gpu=busy, traffic=1e11) for n in range(2))
    probe = ProbeState(loaded=("GPU-0",), loaded_until=103.0)
    report = Report(started=0.0, gpus=gpus, probe=probe)

    first, second = gather_facts(report, 102.0).gpus
    assert (first.utilization, first.traffic, first.memory_used) == (None, None, 2e9)
    assert (second.utilization, second.traffic) == (1.0, 1e11)
    assert gather_facts(report, 103.0).gpus[0].utilization == 1.0


def test_what_is_wrong_with_the_store_is_said_where_nothing_runs_for_it() -> None:
    """With the remedy, since holds that cannot be read keep every run away."""
    unread = Report(started=0.0, notices={"store": "/gpumon.db: it is not a store of gpumon; move it away"})
    skip = may_run(gather_facts(unread, 0.0))
    assert skip is not None
    assert (skip.reason, skip.hint.endswith("it is not a store of gpumon; move it away.")) == ("held", True)
