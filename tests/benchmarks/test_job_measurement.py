"""`python -m benchmarks.jobs`: simulated jobs through `reduce`, and the verdicts about them."""

from __future__ import annotations

from random import Random

import pytest
from each_case import each_case

from benchmarks.jobs.__main__ import calm_table, hang_table
from benchmarks.jobs.kinds import CALM, Cycle, gone, idle, length, script, spin, work
from benchmarks.jobs.measure import Hang, raised


@each_case("kind", CALM)
def test_all_ranks_of_a_job_keep_time(kind: str) -> None:
    """The phases of the first rank take as long as those of the others, so that they wait for each other."""
    first, others = script(kind, Random(1), 7200.0)  # noqa: S311 - reproducible
    assert 7200.0 <= length(first) == pytest.approx(length(others))


@each_case("seed", [0, 1])
def test_the_job_that_hangs_is_reported_and_its_neighbour_is_not(seed: int) -> None:
    """Owners are read from the processes, or from a prolog: then a rank without a process is still in the job."""
    hangs: Cycle = [work(700), idle(1e5, "T")], [work(700), spin(1e5)]
    saves: Cycle = [work(700), idle(1e5, "R")], [work(700), spin(1e5)]
    [(job, at)] = raised("h100x8", seed, [saves, hangs], 4, 960.0)
    assert job == 1
    assert 880 <= at <= 900


def test_a_job_that_ends_in_order_is_not_reported() -> None:
    ends: Cycle = [work(700), gone(1e5)], [work(700), gone(1e5)]
    assert list(raised("h100pciex2", 1, [ends], 2, 960.0)) == []


def test_the_tables_add_up() -> None:
    """Rates are per thousand job-hours of four hours a job; a hang without a verdict is not in the median."""
    assert list(calm_table({"a": [0, 1], "b": [0]}))[1:] == [
        "| a | 8 | 1 | 125.0 |",
        "| b | 4 | 0 | 0.0 |",
        "| **all** | 12 | 1 | 83.3 |",
    ]
    hangs = [
        Hang("x", paused=True, seconds=9.0),
        Hang("x", paused=False, seconds=None),
        Hang("x", paused=True, seconds=5.0),
        Hang("x", paused=True, seconds=None),
    ]
    assert list(hang_table(hangs))[1:] == ["| x | no | 0 of 1 | | |", "| x | yes | 2 of 3 | 7 s | 9 s |"]
