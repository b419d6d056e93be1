"""Measure the check job_stalled over thousands of simulated job-hours: hangs that it finds, and false verdicts.

Half of the nodes have a scheduler's prolog that names the owners; on the others the processes name them. Readings are
those of the simulated node (docs/simulation.md), every five seconds.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from multiprocessing import get_context
from statistics import median

from gpumon_sim.profiles import PROFILES

from benchmarks.jobs.measure import CALM_GPUS, HANG_GPUS, RUN_HOURS, Hang, measure_calm, measure_hangs


def calm_table(results: Mapping[str, Sequence[int]]) -> Iterator[str]:
    yield "| a job that does not hang | job-hours | false verdicts | per 1,000 job-hours |\n| --- | --- | --- | --- |"
    rows = {**results, "**all**": [count for counts in results.values() for count in counts]}
    for kind, counts in rows.items():
        hours = RUN_HOURS * len(counts)
        yield f"| {kind} | {hours:,.0f} | {sum(counts)} | {1000 * sum(counts) / hours:.1f} |"


def hang_table(hangs: Sequence[Hang]) -> Iterator[str]:
    yield "| hang | had paused before | found | median | longest |\n| --- | --- | --- | --- | --- |"
    for kind, paused in dict.fromkeys((hang.kind, hang.paused) for hang in sorted(hangs, key=lambda each: each[:2])):
        rows = [hang.seconds for hang in hangs if (hang.kind, hang.paused) == (kind, paused)]
        found = [seconds for seconds in rows if seconds is not None]
        after = f"{median(found):.0f} s | {max(found):.0f} s" if found else "|"
        yield f"| {kind} | {'yes' if paused else 'no'} | {len(found)} of {len(rows)} | {after} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs", description=__doc__)
    parser.add_argument("--hours", type=float, default=2000, help="job-hours without a hang")
    parser.add_argument("--hangs", type=int, default=120, help="jobs that hang")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="h100x16")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    args = parser.parse_args()
    gpus = len(PROFILES[args.profile].bus_ids)
    seeds = range(args.seed, args.seed + round(args.hours / RUN_HOURS / (gpus // CALM_GPUS)))
    hang_seeds = range(args.seed, args.seed + round(args.hangs / (gpus // HANG_GPUS)))
    calm: dict[str, list[int]] = defaultdict(list)
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        hangs = list(chain.from_iterable(pool.map(partial(measure_hangs, args.profile), hang_seeds)))
        print("\n".join(hang_table(hangs)), end="\n\n", flush=True)
        for kind, false in chain.from_iterable(pool.map(partial(measure_calm, args.profile), seeds)):
            calm[kind].append(false)
    print("\n".join(calm_table(calm)))


if __name__ == "__main__":
    main()
