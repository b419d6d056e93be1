"""GPUs that are held and idle, and GPUs that are busy all the time."""

from __future__ import annotations

import pytest
from judging import Ward

from gpumon.health.check_row import HOUR, MINUTE
from gpumon.health.policy import Policy
from gpumon.health.verdict import Level


def use_gpu(ward: Ward, share: float, *, seconds: float, processes: float = 1.0) -> Ward:
    """GPU 1 is busy for this share of the time; processes hold it."""
    for _ in range(int(seconds / 30)):
        now = ward.report.gpus[1].gpu
        assert now.busy_seconds_total is not None
        assert now.observed_seconds_total is not None
        ward.gpu(
            1,
            busy_seconds_total=now.busy_seconds_total + 30 * share,
            observed_seconds_total=now.observed_seconds_total + 30,
            processes=processes,
        )
        ward.go_on(30, every=30)
    return ward


def test_a_gpu_that_is_held_and_idle_for_an_hour_is_reported() -> None:
    """For information, with its busy share; it is cleared when the GPU works again."""
    ward = use_gpu(Ward(gpus=2, ports=0), 0.02, seconds=50 * MINUTE)
    assert ward.verdict("gpu_idle") is None
    verdict = use_gpu(ward, 0.02, seconds=20 * MINUTE).verdict("gpu_idle", 1)
    assert verdict is not None
    assert verdict.level is Level.WARN
    assert verdict.reason == "Processes held it for an hour in which it was busy 2% of the time."
    assert use_gpu(ward, 1.0, seconds=HOUR).verdict("gpu_idle") is None


@pytest.mark.parametrize(
    ("share", "processes", "thresholds"),
    [(0.5, 1.0, {}), (0.02, 0.0, {}), (0.02, 1.0, {"min_busy_ratio": 0.01}), (0.02, 1.0, {"min_busy_ratio": None})],
)
def test_a_gpu_that_works_or_is_free_is_not_idle(
    share: float, processes: float, thresholds: dict[str, float | None]
) -> None:
    ward = Ward(gpus=2, ports=0, policy=Policy(thresholds=thresholds))
    assert use_gpu(ward, share, seconds=70 * MINUTE, processes=processes).verdict("gpu_idle") is None


def test_a_busy_gpu_is_reported_only_above_a_configured_limit() -> None:
    """Off by default: training is meant to keep a GPU busy."""
    assert use_gpu(Ward(gpus=2, ports=0), 0.95, seconds=70 * MINUTE).verdict("gpu_busy") is None
    ward = Ward(gpus=2, ports=0, policy=Policy(thresholds={"max_busy_ratio": 0.85}))
    verdict = use_gpu(ward, 0.95, seconds=70 * MINUTE).verdict("gpu_busy", 1)
    assert verdict is not None
    assert verdict.reason == "It was busy 95% of the last hour, above the limit of 85%."
