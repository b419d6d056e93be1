"""`python -m benchmarks.explain`: run seeds of each fault, and print how often the right rank was named."""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter

from benchmarks.explain.job import FAULTS, gloo_job
from gpumon.cli.hang.collect import read_jobs
from gpumon.cli.hang.judge import conclude

RIGHT, NONE, INNOCENT = "right", "none named", "innocent named"


def outcome(fault: str, seed: int) -> tuple[str, str]:
    """Run one job, and return what `gpumon explain` concludes about it and its summary."""
    rng = random.Random(f"{fault} {seed}")  # noqa: S311 - a job that can be repeated
    size = rng.randrange(2, 5)
    culprit = rng.randrange(size)
    with gloo_job(fault, culprit, size, seed) as job:
        pids = {each.pid for each in job.ranks}
        jobs, _ = read_jobs(str(job.ranks[0 if culprit else 1].pid))
    (read,) = jobs
    if not {each.pid for each in read.ranks} - {None} <= pids:
        raise RuntimeError("another job was read")
    conclusion = conclude(read)
    named = {each.rank for each in conclusion.suspects}
    kind = RIGHT if named == {culprit} else INNOCENT if named - {culprit} else NONE
    return kind, f"{size} ranks, culprit {culprit}: {conclusion.summary}"


def main() -> None:
    """Print one line for each job, and the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.explain")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--faults", nargs="*", default=FAULTS, choices=FAULTS)
    args = parser.parse_args()
    table: dict[str, Counter[str]] = {fault: Counter() for fault in args.faults}
    for seed in range(args.first, args.first + args.seeds):
        for fault in args.faults:
            kind, summary = outcome(fault, seed)
            table[fault][kind] += 1
            print(json.dumps([fault, seed, kind, summary]), flush=True)
    print(f"\n{'fault':<10} {RIGHT:>6} {NONE:>12} {INNOCENT:>15}")
    for fault, counts in table.items():
        print(f"{fault:<10} {counts[RIGHT]:>6} {counts[NONE]:>12} {counts[INNOCENT]:>15}")


main()
