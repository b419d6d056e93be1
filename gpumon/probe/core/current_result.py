"""Choose the run that describes a probe now: a partial run does not clear a fault on a GPU that it left out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpumon.probe.core.result import DECISIVE, SUCCESSES, ProbeResult


def current_result(runs: Sequence[ProbeResult], probe: str) -> ProbeResult | None:
    """Return the newest run, or an earlier one with a fault that no later success covers. Runs are newest last.

    A success covers a fault if it used all GPUs of the host, or all GPUs of the run with the fault. Skips do not count.
    """
    current: ProbeResult | None = None
    later: list[ProbeResult] = []
    for run in reversed([run for run in runs if run.probe == probe]):
        if current is None or (run.outcome != "ok" and not any(_covers(success, run) for success in later)):
            current = run
        if current.outcome not in SUCCESSES or (run.is_whole and run.outcome in DECISIVE):
            break
        if run.outcome in SUCCESSES:
            later.append(run)
    return current


def checked_result(runs: Iterable[ProbeResult], probe: str) -> ProbeResult | None:
    """Return the current result among the runs that checked their data."""
    return current_result([run for run in runs if run.outcome in DECISIVE], probe)


def newest_result(runs: Sequence[ProbeResult], probe: str) -> ProbeResult | None:
    """Return the last run, whatever its outcome."""
    return next((run for run in reversed(runs) if run.probe == probe), None)


def _covers(later: ProbeResult, earlier: ProbeResult) -> bool:
    return set(later.conditions.gpus) >= set(earlier.conditions.gpus)
