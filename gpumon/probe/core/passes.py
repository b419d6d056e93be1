"""Defines a pass: a set of ranks, the steps that they took, and what each rank reported. Computes its measurements.

Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpumon.probe.core.frames import Account, Sized
from gpumon.probe.core.plan import Measure, Pairs, Plan, Step
from gpumon.probe.core.preflight import Skip
from gpumon.probe.core.result import Measurement, Pair

PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the ranks of a pass ended, as observed by the agent."""

    duration: float = 0.0
    timed_out: bool = False
    aborted: Skip | None = None
    not_started: str = ""
    """Error that prevented the ranks from starting; empty if they were started."""
    abandoned: tuple[int, ...] = ()
    """Pids of ranks, and of processes that they started, that SIGKILL did not end."""
    first_failed: int | None = None
    """Rank that failed first, or that first died without an error message; others often fail because of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A set of ranks and their reports, in progress or ended. A run makes one pass for each NCCL algorithm."""

    plan: Plan
    steps: Sequence[Step] = ()
    """The steps that the ranks were ordered to take so far. The number of a step is its index here."""
    accounts: Sequence[Account] = ()
    """Account of each rank that was started, in the order of the ranks."""
    ending: Ending = Ending()

    @property
    def versions(self) -> Mapping[str, str]:
        return next((account.versions for account in self.accounts if account.versions), {})

    @property
    def complete(self) -> bool:
        """Return whether every rank of the plan was started."""
        return len(self.accounts) == self.plan.ranks


def measurements(run_pass: Pass) -> tuple[Measurement, ...]:
    """Return the fastest measurement of each operation, data type and size that every rank has reported.

    Its wrong elements are the sum of all repeats.
    """
    fastest: dict[tuple[object, ...], Measurement] = {}
    for number, step in enumerate(run_pass.steps):
        if isinstance(step, Measure):
            for measurement in step_measurements(run_pass, number, step):
                before = fastest.get(measurement.key, replace(measurement, wrong_elements=0))
                faster = min(before, measurement, key=lambda each: each.latency_seconds["p50"])
                wrong = before.wrong_elements + measurement.wrong_elements
                fastest[measurement.key] = replace(faster, wrong_elements=wrong)
    return tuple(fastest.values())


def step_measurements(run_pass: Pass, number: int, step: Measure) -> tuple[Measurement, ...]:
    """Return the measurements of step `number` of the pass, for each size that every rank has reported."""
    keys = [(number, size) for size in step.sizes]
    whole = [key for key in keys if run_pass.complete and all(key in account.sizes for account in run_pass.accounts)]
    return tuple(
        _measurement(run_pass.plan, step, size, [a.sizes[at, size] for a in run_pass.accounts]) for at, size in whole
    )


def pairs(run_pass: Pass) -> tuple[Pair, ...]:
    """Return the fastest exchange of each pair that both ranks reported, with the wrong elements of all repeats."""
    fastest: dict[tuple[int, int], Pair] = {}
    sides = {account.rank: account.pairs for account in run_pass.accounts}
    for number, step in enumerate(run_pass.steps):
        if isinstance(step, Pairs):
            for a, b in (pair for together in step.rounds for pair in together):
                at_a, at_b = sides.get(a, {}).get((number, b)), sides.get(b, {}).get((number, a))
                if at_a is not None and at_b is not None:
                    fastest[a, b] = _faster_pair(fastest.get((a, b)), _pair(step, (a, b), at_a, at_b))
    return tuple(fastest.values())


def wrong_elements(run_pass: Pass) -> int | None:
    """Return the total of wrong elements of all ranks; None if there are none and no size was measured by all ranks."""
    sizes = (sized for account in run_pass.accounts for sized in (*account.sizes.values(), *account.pairs.values()))
    wrong = sum(sized.wrong for sized in sizes)
    return wrong if wrong or measurements(run_pass) else None


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile of `values`, which must not be empty, by linear interpolation. `share`: 0.95 for p95."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _measurement(plan: Plan, step: Measure, size: int, ranks: Sequence[Sized]) -> Measurement:
    slowest = [max(together) for together in zip(*(rank.seconds for rank in ranks), strict=False)]
    latency = {name: percentile(slowest, share) for name, share in PERCENTILES.items()}
    probe, median = plan.probe, latency["p50"]
    return Measurement(
        operation=step.operation,
        algorithm=plan.algorithm,
        dtype=step.dtype,
        quantity=probe.quantity,
        unit=probe.unit,
        size=size,
        size_unit=probe.size_unit,
        value=probe.value(size, plan.ranks, median),
        raw_value=None if probe.raw_value is None else probe.raw_value(size, plan.ranks, median),
        iterations=len(slowest),
        latency_seconds=latency,
        min_seconds=min(slowest),
        variation_ratio=statistics.pstdev(slowest) / statistics.fmean(slowest),
        wrong_elements=sum(rank.wrong for rank in ranks),
    )


def _pair(step: Pairs, ranks: tuple[int, int], at_a: Sized, at_b: Sized) -> Pair:
    """Return the result of a pair. Its fastest exchange counts: a busy host delays some, but a slow link delays all."""
    slower = [max(together) for together in zip(at_a.seconds, at_b.seconds, strict=False)]
    return Pair(
        ranks=ranks,
        bandwidth_bytes_per_second=step.bytes / min(slower),
        wrong_elements=(at_b.wrong, at_a.wrong),
        wrong_send_elements=(at_a.wrong_send_elements, at_b.wrong_send_elements),
        direct=None if at_a.direct is None or at_b.direct is None else at_a.direct and at_b.direct,
    )


def _faster_pair(before: Pair | None, after: Pair) -> Pair:
    if before is None:
        return after
    (a, b), (c, d) = before.wrong_elements, before.wrong_send_elements
    return replace(
        max(before, after, key=lambda pair: pair.bandwidth_bytes_per_second),
        wrong_elements=(a + after.wrong_elements[0], b + after.wrong_elements[1]),
        wrong_send_elements=(c + after.wrong_send_elements[0], d + after.wrong_send_elements[1]),
    )
