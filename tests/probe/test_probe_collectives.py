"""Every collective of the worker's table, on real ranks, with data that is right and data that is not."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gpumon.probe.core.frames import Sized
from gpumon.probe.core.passes import Pass
from gpumon.probe.core.plan import Measure, Misbehave, Step, make_plans
from gpumon.probe.core.probes import KIB, MIB, PROBES
from gpumon.probe.runner.ranks import Ranks
from gpumon.supervisor.loop import Loop

pytestmark = pytest.mark.slow


RANKS = 3
"""By which no size is divisible: shares are rounded down."""
SIZES = (KIB, 5 * MIB)
"""The larger one is longer than the tile that fills it."""
COLLECTIVES = tuple(dict.fromkeys(one for probe in PROBES.values() for one in probe.collectives))
DTYPES = ("float32", "bfloat16")
MEASURES = tuple(
    Measure(collective=one, dtype=dtype, sizes=SIZES, operations=5) for one in COLLECTIVES for dtype in DTYPES
)
COURSE: tuple[Step, ...] = (*MEASURES, Misbehave(fault="corrupt:1"), *MEASURES)

Told = dict[tuple[str, str, int], list[Sized]]
"""By collective, type and size, what each rank told."""


@pytest.fixture(scope="module")
def told() -> tuple[Told, Told]:
    """First as it should be, then with one rank that gives a wrong element."""
    loop, ended = Loop(), list[Pass]()
    [plan] = make_plans(PROBES["allreduce"], (), python=sys.executable, cpu_ranks=RANKS, deadline=200.0)

    def end(one: Pass) -> None:
        ended.append(one)
        loop.stop()

    def course(one: Pass) -> Step | None:
        return COURSE[len(one.steps)] if len(one.steps) < len(COURSE) else None

    Ranks(loop).start(plan, course, lambda _: None, end)
    loop.run()
    [one] = ended
    assert [account.error for account in one.accounts] == [""] * RANKS
    return _told(one, 0), _told(one, len(MEASURES) + 1)


def _told(one: Pass, begun: int) -> Told:
    return {
        (step.collective, step.dtype, size): [account.sizes[begun + number, size] for account in one.accounts]
        for number, step in enumerate(MEASURES)
        for size in SIZES
    }


def test_every_collective_is_timed_and_finds_its_data_right(told: tuple[Told, Told]) -> None:
    """On each rank and at each size, in both types, also where the ranks do not divide it."""
    right, _ = told
    assert set(COLLECTIVES) == {
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
        *("send_receive", "host_to_device", "device_to_host"),
    }
    assert {key: [one.wrong for one in ranks] for key, ranks in right.items()} == dict.fromkeys(right, [0] * RANKS)
    assert all(len(one.seconds) >= 5 and min(one.seconds) > 0 for ranks in right.values() for one in ranks)


SHARES = """
import json, sys
sys.path.insert(0, sys.argv[1])
from gpumon_rank.collectives import share
print(json.dumps([share(size // width, ranks, width) * width for size, ranks, width in json.loads(sys.argv[2])]))
"""


def test_shares_are_aligned_and_the_agent_reckons_with_the_same() -> None:
    """Whatever the number of ranks, the largest multiple of 16 bytes of which each can have one, and at least that."""
    probe = PROBES["allgather"]
    cases = [
        (size, ranks, width) for size in (KIB, MIB, 64 * MIB) for ranks in (2, 3, 5, 6, 7, 8, 72) for width in (2, 4)
    ]
    command = [sys.executable, "-I", "-c", SHARES, str(probe.worker), json.dumps(cases)]
    shares = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    for (size, ranks, width), share in zip(cases, shares, strict=True):
        assert share % 16 == 0
        assert share == max(16, size // ranks - size // ranks % 16), (size, ranks, width)
        assert probe.participating_bytes(size, ranks) == ranks * share


def test_one_wrong_element_is_counted_where_it_arrives(told: tuple[Told, Told]) -> None:
    """By every rank that got it, and by no other."""
    arrives = {
        "all_reduce": [1, 1, 1],
        "all_gather": [1, 1, 1],
        "reduce_scatter": [0, 1, 0],
        "all_to_all": [0, 1, 0],
        "send_receive": [0, 0, 1],
        "host_to_device": [0, 1, 0],
        "device_to_host": [0, 1, 0],
    }
    _, spoilt = told
    for (collective, dtype, size), ranks in spoilt.items():
        assert [one.wrong for one in ranks] == arrives[collective], (collective, dtype, size)
