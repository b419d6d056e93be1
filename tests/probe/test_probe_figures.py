from __future__ import annotations

import re
from itertools import pairwise

import pytest
from each_case import each_case

from gpumon.probe.core.baseline import Floors, Judge
from gpumon.probe.core.nvlink_sharp import LOST, compare_algorithms, missing_gain
from gpumon.probe.core.probes import GIB, MIB, PROBES
from gpumon.probe.core.published_figures import NEAR, TABLE, figure, gain
from gpumon.probe.core.result import Measurement
from gpumon.sim.profiles import PROFILES

H200 = "NVIDIA H200"


def measured(
    size: int, busbw: float = 1e9, *, algorithm: str = "default", collective: str = "all_reduce"
) -> Measurement:
    return Measurement(
        collective=collective,
        algorithm=algorithm,
        bytes=size,
        iterations=20,
        algbw_bytes_per_second=busbw,
        busbw_bytes_per_second=busbw,
        latency_seconds={"p50": 1.0, "p95": 1.0, "p99": 1.0},
        wrong_elements=0,
    )


def rate(model: str, ranks: int, one: Measurement) -> float | None:
    known = figure(model, ranks, one)
    return None if known is None else known[0]


def test_a_host_is_asked_for_what_others_had_at_the_nearest_size() -> None:
    """Of two that are as near the smaller; none where all are far larger."""
    assert rate(H200, 8, measured(GIB)) == 450e9  # of 512 MiB: the next is 2 GiB
    assert rate(H200, 8, measured(2 * GIB)) == 469e9
    assert rate(H200, 8, measured(64 * GIB)) == 482.3e9
    assert rate(H200, 8, measured(MIB)) is None


def test_a_figure_is_of_one_product_one_number_of_ranks_and_one_algorithm() -> None:
    """What is not published is not made up from what is."""
    assert rate(H200, 3, measured(16 * GIB)) is None
    assert rate(f"{H200} NVL", 8, measured(GIB)) is None
    assert rate(f"NVIDIA B200, {H200}", 8, measured(GIB)) is None
    assert rate(H200, 8, measured(GIB, algorithm="ring")) is None
    assert rate(H200, 8, measured(4 * GIB, algorithm="ring")) == 367.6e9
    assert rate(H200, 8, measured(GIB, collective="all_gather")) is None


@pytest.mark.parametrize("profile", ["a100x8", "h100x8", "h200x8", "b200x8"])
def test_whole_boards_have_a_figure_at_the_size_that_the_probe_measures(profile: str) -> None:
    """Under the names that NVML gives them, and it tells the default algorithm from one that lost NVLink SHARP."""
    board = PROFILES[profile].board
    assert rate(board.product, 8, measured(max(PROBES["allreduce"].gpu.sizes))) is not None


@pytest.mark.parametrize(("model", "well", "lost"), [("NVIDIA B200", 790e9, 682e9), (H200, 473e9, 367.6e9)])
def test_a_default_at_the_level_of_the_ring_has_lost_nvlink_sharp(model: str, well: float, lost: float) -> None:
    """On a host that has no median yet, at the largest size."""
    size = max(PROBES["allreduce"].gpu.sizes_if_fit)
    judge = Judge(probe="allreduce", backend="nccl", expected=lambda one: figure(model, 8, one))
    for default, said in ((well, ""), (lost, LOST)):
        both = [measured(size, default), measured(size, lost, algorithm="ring")]
        compared = [judge.compare(one, ranks=8, versions={}) for one in both]
        assert [one.low for one in compared] == ["expected" if said else "", ""]
        assert compare_algorithms(compared) == said


@each_case(
    ("model", "size", "well", "ring", "said"),
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
def test_a_first_run_tells_that_the_default_is_no_faster_than_the_ring(
    model: str,
    size: int,
    well: float,
    ring: float,
    said: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """Where published figures of both say that NVLink SHARP makes it faster at that size; else nobody can tell."""
    judge = Judge(probe="allreduce", backend="nccl")
    both = [measured(size, well), measured(size, ring, algorithm="ring")]
    compared = [judge.compare(one, ranks=8, versions={}) for one in both]
    assert bool(missing_gain(compared, lambda size: gain(model, 8, size))) == said
    assert missing_gain(compared[:1], lambda size: gain(model, 8, size)) == ""


def test_every_figure_is_near_a_size_that_the_probe_measures() -> None:
    """What was published of 8 and 16 GiB alone counts for the largest size of a run, the ring above all."""
    largest = max(PROBES["allreduce"].gpu.sizes_if_fit)
    for one in TABLE:
        assert one.bytes <= NEAR * largest
    assert rate(H200, 5, measured(largest)) == 414e9
    assert rate("NVIDIA B300 SXM6 AC", 8, measured(largest)) == 845e9
    assert rate("NVIDIA B200", 8, measured(GIB, algorithm="ring")) is None


def test_figures_grow_with_the_size_and_name_their_source() -> None:
    """Rows of one product stand together, the smallest size first."""
    for before, after in pairwise(TABLE):
        if (before.names, before.ranks, before.algorithm) == (after.names, after.ranks, after.algorithm):
            assert before.bytes < after.bytes
            assert before.busbw < after.busbw
    assert all(re.search(r"\w+/[\w-]+(#\d+|, )", one.source) for one in TABLE)


def judged(busbw: float, floors: Floors) -> str:
    def expected(measurement: Measurement) -> tuple[float, str] | None:
        return figure(H200, 8, measurement)

    judge = Judge(probe="allreduce", backend="nccl", expected=expected, floors=floors)
    return judge.compare(measured(GIB, busbw), ranks=8, versions={}).low


def test_an_h200_host_that_lost_nvlink_sharp_is_slow() -> None:
    """Its ring comes to 370 GB/s, which is below the shipped share of the figure; 0 as the share switches that off."""
    assert judged(370e9, Floors()) == "expected"
    assert judged(440e9, Floors()) == ""
    assert judged(370e9, Floors(expected=0.0)) == ""
