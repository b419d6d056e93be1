from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from each_case import each_case
from gpumon_sim.profiles import PROFILES

from gpumon.probe.core.baseline import Judge
from gpumon.probe.core.plan import make_plans
from gpumon.probe.core.probes import GIB, MIB, PROBES
from gpumon.probe.core.published_figures import NEAR, TABLE, figure, gain
from gpumon.probe.core.result import Measurement
from gpumon.probe.core.ring_comparison import LOST, compare_algorithms, missing_gain

H200 = "NVIDIA H200"


def make_measurement(
    size: int, busbw: float = 1e9, *, algorithm: str = "default", operation: str = "all_reduce"
) -> Measurement:
    return Measurement(
        operation=operation,
        algorithm=algorithm,
        size=size,
        iterations=20,
        raw_value=busbw,
        value=busbw,
        latency_seconds={"p50": 1.0, "p95": 1.0, "p99": 1.0},
        wrong_elements=0,
    )


def figure_bandwidth(model: str, ranks: int, measurement: Measurement) -> float | None:
    match = figure(model, ranks, measurement)
    return None if match is None else match[0]


def test_the_expected_figure_is_that_of_the_nearest_size() -> None:
    """The published figure of the nearest size is expected, the smaller size in a tie, none if all are far larger."""
    assert figure_bandwidth(H200, 8, make_measurement(GIB)) == 450e9  # the figure of 512 MiB; the next size is 2 GiB
    assert figure_bandwidth(H200, 8, make_measurement(2 * GIB)) == 469e9
    assert figure_bandwidth(H200, 8, make_measurement(64 * GIB)) == 482.3e9
    assert figure_bandwidth(H200, 8, make_measurement(MIB)) is None


def test_a_figure_applies_to_one_product_rank_count_and_algorithm() -> None:
    assert figure_bandwidth(H200, 3, make_measurement(16 * GIB)) is None
    assert figure_bandwidth(f"{H200} NVL", 8, make_measurement(GIB)) is None
    assert figure_bandwidth(f"NVIDIA B200, {H200}", 8, make_measurement(GIB)) is None
    assert figure_bandwidth(H200, 8, make_measurement(GIB, algorithm="ring")) is None
    assert figure_bandwidth(H200, 8, make_measurement(4 * GIB, algorithm="ring")) == 367.6e9
    assert figure_bandwidth(H200, 8, make_measurement(GIB, operation="all_gather")) is None


def test_a_host_without_nvlink_sharp_is_compared_with_the_ring() -> None:
    """Where a variable or /etc/nccl.conf switches NVLink SHARP off, the ring's figure is expected of the default."""
    off = "NCCL_NVLS_ENABLE"
    for environment, conf, sharp in [
        ({}, "", True),
        ({off: "0"}, "", False),
        ({}, "NCCL_DEBUG=WARN\nNCCL_NVLS_ENABLE = 0", False),
        ({off: "1"}, "NCCL_NVLS_ENABLE=0", True),
        ({}, "NCCL_ALGO=Ring,Tree", False),
        ({"NCCL_ALGO": "^NVLS"}, "", False),
        ({"NCCL_ALGO": "NVLS,Ring"}, "", True),
        ({"NCCL_ALGO": "^Tree"}, "", True),
    ]:
        plan, *_ = make_plans(
            PROBES["allreduce"], ("GPU-a", "GPU-b"), python="python", environment=environment, nccl_conf={"conf": conf}
        )
        assert plan.uses_sharp is sharp, (environment, conf)
    whole = make_measurement(4 * GIB)
    assert figure(H200, 8, whole, sharp=False) == figure(H200, 8, replace(whole, algorithm="ring"))


@pytest.mark.parametrize("profile", ["a100x8", "h100x8", "h200x8", "b200x8"])
def test_whole_boards_have_a_figure_at_the_measured_size(profile: str) -> None:
    """Each eight-GPU board has a figure at the measured size under its NVML product name."""
    board = PROFILES[profile].board
    assert figure_bandwidth(board.product, 8, make_measurement(max(PROBES["allreduce"].gpu.sizes))) is not None


@pytest.mark.parametrize(("model", "healthy", "lost"), [("NVIDIA B200", 790e9, 682e9), (H200, 473e9, 367.6e9)])
def test_a_default_as_slow_as_the_ring_has_lost_nvlink_sharp(model: str, healthy: float, lost: float) -> None:
    size = max(PROBES["allreduce"].gpu.sizes_if_fit)
    judge = Judge(probe="allreduce", backend="nccl", expected=lambda measurement: figure(model, 8, measurement))
    for default, message in ((healthy, ""), (lost, LOST)):
        both = [make_measurement(size, default), make_measurement(size, lost, algorithm="ring")]
        comparisons = [judge.compare(measurement, ranks=8, versions={}) for measurement in both]
        assert [comparison.below_reference for comparison in comparisons] == ["expected" if message else "", ""]
        assert compare_algorithms(comparisons) == message


@each_case(
    ("model", "size", "default", "ring", "reported"),
    [
        ("NVIDIA B200", GIB, 723e9, 670e9, False),
        ("NVIDIA B200", GIB, 670e9, 668e9, True),
        (H200, GIB, 450e9, 360e9, False),
        (H200, GIB, 390e9, 360e9, True),
        (H200, 16 * MIB, 300e9, 300e9, False),
        ("NVIDIA B300 SXM6 AC", GIB, 700e9, 690e9, False),
        ("NVIDIA A100-SXM4-80GB", GIB, 229e9, 228e9, False),
    ],
)
def test_a_first_run_reports_a_default_no_faster_than_the_ring(
    model: str,
    size: int,
    default: float,
    ring: float,
    reported: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """A first run reports a missing gain if published figures show that NVLink SHARP is faster at that size."""
    judge = Judge(probe="allreduce", backend="nccl")
    both = [make_measurement(size, default), make_measurement(size, ring, algorithm="ring")]
    comparisons = [judge.compare(measurement, ranks=8, versions={}) for measurement in both]
    assert bool(missing_gain(comparisons, lambda size: gain(model, 8, size))) == reported
    assert missing_gain(comparisons[:1], lambda size: gain(model, 8, size)) == ""


def test_every_figure_is_near_a_measured_size() -> None:
    largest = max(PROBES["allreduce"].gpu.sizes_if_fit)
    for row in TABLE:
        assert row.bytes <= NEAR * largest
    assert figure_bandwidth(H200, 5, make_measurement(largest)) == 414e9
    assert figure_bandwidth("NVIDIA B300 SXM6 AC", 8, make_measurement(largest)) == 845e9
    assert figure_bandwidth("NVIDIA B200", 8, make_measurement(GIB, algorithm="ring")) is None


def test_figures_increase_with_size_and_name_their_source() -> None:
    for before, after in pairwise(TABLE):
        if (before.names, before.ranks, before.algorithm) == (after.names, after.ranks, after.algorithm):
            assert before.bytes < after.bytes
            assert before.busbw < after.busbw
    assert all(re.search(r"\w+/[\w-]+(#\d+|, )", row.source) for row in TABLE)
