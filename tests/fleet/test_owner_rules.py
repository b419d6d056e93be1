"""The recording rules that divide the use of GPUs among their owners, evaluated by promtool."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from promtool_run import Series, check, group, selector

from gpumon.fleet.alert_rules import render, rules
from gpumon.fleet.recording_rules import BUSY, HELD, IDLE, POWER, sum_over
from gpumon.model.reading import Labels

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
MINUTES = 61
Course = Callable[[int], float]
"""Value of a counter by the minute."""


def never(_: int) -> float:
    return 0.0


def course(
    held: Course, *, busy: Course = never, no_kernel: Course = never, reset: int = 0, down: int = MINUTES
) -> Mapping[str, list[float | None]]:
    """Return the counters of a GPU of 600 W. `reset`: the minute of a restart. `down`: that of the last scrape."""

    def values(counter: Course) -> list[float | None]:
        base = counter(reset)
        return [
            None if minute > down else counter(minute) - (base if minute >= reset else 0.0) for minute in range(MINUTES)
        ]

    return {
        "allocated_seconds_total": values(held),
        "busy_seconds_total": values(busy),
        "observed_seconds_total": values(lambda minute: 60.0 * minute),
        "energy_joules_total": values(lambda minute: 36e3 * minute),
        'idle_seconds_total{level="no_process"}': values(never),
        'idle_seconds_total{level="no_kernel"}': values(no_kernel),
    }


def gpu(uuid: str, counters: Mapping[str, list[float | None]], *owners: tuple[Labels, range], **node: str) -> Any:
    """Yield the series of a GPU, and of its owners with the minutes in which they are scraped."""
    target: Labels = tuple({"instance": "a", "job": "gpumon", **node}.items())
    own = (*target, ("gpu", "0"), ("uuid", uuid))
    for name, values in counters.items():
        metric, _, level = name.partition("{")
        label = (("level", level.split('"')[1]),) if level else ()
        yield Series(f"gpumon_gpu_{metric}", (*own, *label), values)
    for labels, minutes in owners:
        there = [1.0 if minute in minutes else None for minute in range(MINUTES)]
        yield Series("gpumon_gpu_allocation_info", (*own, ("source", "mapping"), *labels), there)


def job(number: int, user: str = "ann") -> Labels:
    return (("slurm_job_id", str(number)), ("user", user))


def minutes_of(use: str, by: str, wanted: Mapping[Labels, float], at: int = 60) -> dict[str, Any]:
    """Return what promtool expects: the use of an hour in minutes of a GPU."""
    samples = [{"labels": selector("", labels), "value": value} for labels, value in wanted.items()]
    return {
        "expr": f"round(sum by ({by}) ({sum_over(use, '1h')}) / 60, 0.01)",
        "eval_time": f"{at}m",
        "exp_samples": samples,
    }


def evaluate(folder: Path, series: list[Any], *wanted: dict[str, Any]) -> None:
    check(folder, render(rules()), [group(60, series, promql_expr_test=list(wanted))])


def held(until: int = MINUTES) -> Course:
    return lambda minute: 60.0 * min(minute, until)


def test_jobs_that_follow_each_other_have_their_time(tmp_path: Path) -> None:
    """A job of two minutes between two evaluations counts, and no time of the free GPU after it."""
    counters = course(held(33), busy=lambda minute: 30.0 * min(minute, 30), no_kernel=lambda minute: 30.0 * minute)
    series = [*gpu("GPU-1", counters, (job(1), range(31)), (job(2), range(31, 34)))]
    first, second = (("slurm_job_id", "1"),), (("slurm_job_id", "2"),)
    evaluate(
        tmp_path,
        series,
        minutes_of(HELD, "slurm_job_id", {first: 30.75, second: 2.25}),
        minutes_of(HELD, "user", {(("user", "ann"),): 33}),
        minutes_of(BUSY, "slurm_job_id", {first: 15, second: 0}),
        minutes_of(POWER, "user", {(("user", "ann"),): 33 * 600}),
    )


def test_owners_at_one_time_share_a_gpu(tmp_path: Path) -> None:
    """Equally, at the level of idleness; a restart of the agent, whose counters begin at 0, costs the minute of it."""
    counters = course(held(), no_kernel=lambda minute: 60.0 * minute, reset=20)
    series = [*gpu("GPU-1", counters, (job(1), range(MINUTES)), (job(2, "bob"), range(MINUTES)))]
    levels = {"no_process": 0.0, "no_kernel": 59 / 2}
    each: dict[Labels, float] = {
        (("level", level), ("user", user)): minutes for level, minutes in levels.items() for user in ("ann", "bob")
    }
    evaluate(tmp_path, series, minutes_of(IDLE, "level, user", each))


def test_the_time_of_nodes_that_cannot_be_scraped_is_unknown(tmp_path: Path) -> None:
    """Up to the last scrape it counts; nodes of one name in two clusters are two; a job on both is one."""
    series = [
        *gpu("GPU-1", course(held(), down=30), (job(1), range(31)), cluster="east"),
        *gpu("GPU-1", course(held()), (job(1), range(MINUTES)), cluster="west"),
    ]
    clusters: dict[Labels, float] = {
        (("cluster", name),): minutes for name, minutes in (("east", 30.0), ("west", 60.0))
    }
    evaluate(
        tmp_path,
        series,
        minutes_of(HELD, "cluster", clusters),
        minutes_of(HELD, "slurm_job_id", {(("slurm_job_id", "1"),): 90.0}),
    )


def test_time_of_owners_without_a_name_has_no_label(tmp_path: Path) -> None:
    """Names that are not configured, and owners that no scrape showed; no GPU that is free has an owner."""
    series = [
        *gpu("GPU-1", course(held())),
        *gpu("GPU-2", course(held()), ((), range(MINUTES))),
        *gpu("GPU-3", course(never, busy=held())),
    ]
    evaluate(
        tmp_path,
        series,
        minutes_of(HELD, "uuid, user", {(): 120.0}),
        minutes_of(BUSY, "user", {(): 0.0}),
    )


def test_kernels_of_strangers_are_not_charged_to_an_owner(tmp_path: Path) -> None:
    """If kernels ran for longer than the GPU was held, all the time that it was held is busy."""
    counters = course(lambda minute: 30.0 * minute, busy=held())
    evaluate(
        tmp_path,
        [*gpu("GPU-1", counters, (job(1), range(MINUTES)))],
        minutes_of(BUSY, "user", {(("user", "ann"),): 30.0}),
    )


def test_the_documented_query_finds_owners_that_hardly_use_their_gpus(tmp_path: Path) -> None:
    """Owners whose GPUs were busy for less than 30 % of the time for which they held them, and no others."""
    query = re.search(r"# owners whose GPUs.*\n([^`]*)```", (ROOT / "docs" / "jobs.md").read_text())
    assert query is not None
    series = [
        *gpu("GPU-1", course(held(), busy=lambda minute: 12.0 * minute), ((("job_id", "slurm/1"),), range(MINUTES))),
        *gpu("GPU-2", course(held(), busy=lambda minute: 30.0 * minute), ((("job_id", "slurm/2"),), range(MINUTES))),
    ]
    found = [{"labels": '{job_id="slurm/1"}', "value": 0.2}]
    evaluate(tmp_path, series, {"expr": f"round({query[1]}, 0.01)", "eval_time": "60m", "exp_samples": found})
