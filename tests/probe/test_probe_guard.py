from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpumon.probe.guard import IDLE_BYTES, GpuUse, Situation, intruders, may_run
from gpumon.probe.result import SKIP_REASONS


def gpus(*processes: float | None) -> tuple[GpuUse, ...]:
    return tuple(GpuUse(index=n, uuid=f"GPU-{n}", processes=count) for n, count in enumerate(processes))


FREE = Situation(gpus=gpus(0, 0), expected=2)


def test_free_gpus_may_be_probed() -> None:
    """Nothing is in the way of a run on GPUs that no process holds."""
    assert may_run(FREE) is None


def test_a_host_without_gpus_may_be_probed() -> None:
    """A host that has no GPU and expects none runs the probe on its CPU."""
    assert may_run(Situation()) is None


@pytest.mark.parametrize(
    ("situation", "reason", "hint"),
    [
        (replace(FREE, gpus=gpus(0, 3)), "busy", "GPU 1 (3)"),
        (replace(FREE, gpus=gpus(0, None)), "busy", "GPU 1"),
        (replace(FREE, expected=8), "busy", "6 of 8"),
        (replace(FREE, unkillable=(4711,)), "busy", "4711"),
        (replace(FREE, enabled=False), "disabled", "probe.enabled"),
        (replace(FREE, maintained=True), "maintenance", "gpumon maintenance end"),
        (Situation(gpus=gpus(0), expected=1), "single_gpu", "One GPU"),
        (Situation(expected=1), "single_gpu", "One GPU"),
    ],
)
def test_each_objection_names_its_reason_and_hint(situation: Situation, reason: str, hint: str) -> None:
    """Every guard skips with a listed reason and a hint that says what it saw."""
    skip = may_run(situation)
    assert skip is not None
    assert (skip.reason, hint in skip.hint) == (reason, True)
    assert skip.reason in SKIP_REASONS


def test_what_is_not_known_is_named_with_its_fault() -> None:
    """A GPU that does not answer might be in use: the hint says which, and why it does not answer."""
    lost = GpuUse(index=3, uuid="GPU-3", processes=None, fault="lost")
    skip = may_run(Situation(gpus=(*gpus(0, 0, 0), lost), expected=4))
    assert skip is not None
    assert "GPU 3 (lost)" in skip.hint


def test_a_simulated_node_is_guarded_by_its_simulated_processes() -> None:
    """One simulated GPU does not stop the probe, which is real on the CPU; a simulated job does."""
    assert may_run(Situation(gpus=gpus(0), expected=1, simulated=True)) is None
    skip = may_run(Situation(gpus=gpus(1), expected=1, simulated=True))
    assert skip is not None
    assert skip.reason == "busy"


@pytest.mark.parametrize("simulated", [False, True])
@pytest.mark.parametrize(
    ("sign", "hint"),
    [({"utilization": 0.01}, "GPU 1 is 1% utilized"), ({"memory_used": 3.0 * IDLE_BYTES}, "GPU 1 has 3.0 GiB in use")],
)
def test_work_that_no_process_explains_yet_is_busy(sign: dict[str, Any], hint: str, *, simulated: bool) -> None:
    """Processes are counted seldom: what every poll reads tells of a job that came since."""
    first, second = gpus(0, 0)
    skip = may_run(replace(FREE, gpus=(first, replace(second, **sign)), simulated=simulated))
    assert skip is not None
    assert (skip.reason, hint in skip.hint) == ("busy", True)


def test_what_an_idle_gpu_shows_is_not_busy() -> None:
    """No utilization, and the memory that some drivers count as used for themselves."""
    idle = tuple(replace(gpu, utilization=0.0, memory_used=0.6 * IDLE_BYTES) for gpu in gpus(0, 0))
    assert may_run(replace(FREE, gpus=idle)) is None


def test_a_run_gives_way_to_others_and_not_to_its_own_ranks() -> None:
    """One process a GPU is its own on real GPUs; on simulated ones, where the ranks never show, a stranger."""
    own = Situation(gpus=tuple(replace(gpu, utilization=1.0, memory_used=8.0 * IDLE_BYTES) for gpu in gpus(1, 1)))
    assert intruders(own) is None
    for taken in (replace(own, gpus=gpus(1, 2)), Situation(gpus=gpus(0, 1), simulated=True)):
        skip = intruders(taken)
        assert skip is not None
        assert (skip.reason, "GPU 1" in skip.hint, "GPU 0" in skip.hint) == ("busy", True, False)
