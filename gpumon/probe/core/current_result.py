"""Chooses the result that determines the current state of a probe.

A partial run does not clear faults of GPUs that the run left out. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpumon.probe.core.result import DECISIVE, SUCCESSES, ProbeResult


def current_result(runs: Sequence[ProbeResult], probe: str) -> ProbeResult | None:
    """Return the run that determines the current state of a probe; None if the probe has no run.

    The newest run determines it, unless an earlier run had a fault that no later success covers: then that earlier run
    does. A success covers a fault if it used all GPUs of the host, or all GPUs of the run with the fault.
    `runs`: newest last, without skips.
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
    """Return `current_result` for only the runs that checked their data (see DECISIVE); None if there are none."""
    return current_result([run for run in runs if run.outcome in DECISIVE], probe)


def newest_result(runs: Sequence[ProbeResult], probe: str) -> ProbeResult | None:
    """Return the newest run of a probe, whatever its outcome; None if there is none."""
    return next((run for run in reversed(runs) if run.probe == probe), None)


def _covers(later: ProbeResult, earlier: ProbeResult) -> bool:
    return set(later.conditions.gpus) >= set(earlier.conditions.gpus)
