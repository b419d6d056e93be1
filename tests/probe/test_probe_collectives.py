"""Every operation of the worker on real ranks, with correct and with corrupted data."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from gpumon.probe.core.frames import Sized
from gpumon.probe.core.passes import Pass
from gpumon.probe.core.plan import CHECKS, Measure, Misbehave, Step, make_plans
from gpumon.probe.core.probes import KIB, MIB, PROBES, participating_bytes
from gpumon.runner.ranks import Ranks
from gpumon.supervisor.loop import Loop

pytestmark = pytest.mark.slow


RANKS = 3
"""A number that divides no size, so that shares are rounded down."""
SIZES = (KIB, 5 * MIB)
"""The larger size exceeds the tile that fills it."""
BANDWIDTHS = (probe for probe in PROBES.values() if probe.size_unit == "bytes")
OPERATIONS = tuple(dict.fromkeys(name for probe in BANDWIDTHS for name in probe.operations))
DTYPES = ("float32", "bfloat16")
MEASURES = tuple(
    Measure(operation=name, dtype=dtype, sizes=SIZES, operations=5) for name in OPERATIONS for dtype in DTYPES
)
STEPS: tuple[Step, ...] = (*MEASURES, Misbehave(fault="corrupt:1"), *MEASURES)

RankMeasurements = dict[tuple[str, str, int], list[Sized]]
"""Measurements of each rank by operation, type and size."""


@pytest.fixture(scope="module")
def measurements() -> tuple[RankMeasurements, RankMeasurements]:
    """Return the measurements without a fault, then those with one rank that sends a wrong element."""
    loop, passes = Loop(), list[Pass]()
    [plan] = make_plans(replace(PROBES["allreduce"], ranks=RANKS), (), python=sys.executable, deadline=200.0)

    def end(run_pass: Pass) -> None:
        passes.append(run_pass)
        loop.stop()

    def next_step(run_pass: Pass) -> Step | None:
        return STEPS[len(run_pass.steps)] if len(run_pass.steps) < len(STEPS) else None

    Ranks(loop).start(plan, next_step, lambda _: None, end)
    loop.run()
    [run_pass] = passes
    assert [account.error for account in run_pass.accounts] == [""] * RANKS
    return _measurements_from(run_pass, 0), _measurements_from(run_pass, len(MEASURES) + 1)


def _measurements_from(run_pass: Pass, first_step: int) -> RankMeasurements:
    return {
        (step.operation, step.dtype, size): [account.sizes[first_step + number, size] for account in run_pass.accounts]
        for number, step in enumerate(MEASURES)
        for size in SIZES
    }


def test_every_operation_is_timed_and_its_data_is_correct(
    measurements: tuple[RankMeasurements, RankMeasurements],
) -> None:
    correct, _ = measurements
    assert set(OPERATIONS) == {
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
        *("send_receive", "host_to_device", "device_to_host"),
    }
    assert {key: [sized.wrong for sized in ranks] for key, ranks in correct.items()} == dict.fromkeys(
        correct, [0] * RANKS
    )
    assert all(len(sized.seconds) >= 5 and min(sized.seconds) > 0 for ranks in correct.values() for sized in ranks)


SHARES = """
import json, sys
sys.path.insert(0, sys.argv[1])
from gpumon_rank.operations import share
print(json.dumps([share(size // width, ranks, width) * width for size, ranks, width in json.loads(sys.argv[2])]))
"""


def test_worker_and_agent_compute_the_same_aligned_shares() -> None:
    """A share is the largest multiple of 16 bytes that fits for every rank, at least 16, in worker and agent."""
    probe = PROBES["allgather"]
    cases = [
        (size, ranks, width) for size in (KIB, MIB, 64 * MIB) for ranks in (2, 3, 5, 6, 7, 8, 72) for width in (2, 4)
    ]
    command = [sys.executable, "-I", "-c", SHARES, str(probe.worker), json.dumps(cases)]
    shares = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    for (size, ranks, width), share in zip(cases, shares, strict=True):
        assert share % 16 == 0
        assert share == max(16, size // ranks - size // ranks % 16), (size, ranks, width)
        assert participating_bytes(size, ranks) == ranks * share


def test_a_wrong_element_is_counted_on_each_rank_that_receives_it(
    measurements: tuple[RankMeasurements, RankMeasurements],
) -> None:
    """A wrong element is counted by every rank that receives it, in each checked operation, and by no other."""
    expected = {
        "all_reduce": [1, 1, 1],
        "all_gather": [1, 1, 1],
        "reduce_scatter": [0, 1, 0],
        "all_to_all": [0, 1, 0],
        "send_receive": [0, 0, 1],
        "host_to_device": [0, 1, 0],
        "device_to_host": [0, 1, 0],
    }
    _, corrupted = measurements
    for (operation, dtype, size), ranks in corrupted.items():
        assert [sized.wrong for sized in ranks] == [CHECKS * number for number in expected[operation]], (
            operation,
            dtype,
            size,
        )
