"""Which run tells how a probe stands: one without a GPU does not answer what an earlier one found with it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpumon.probe.core.result import DECISIVE, SUCCESSES, ProbeResult


def standing(runs: Sequence[ProbeResult], probe: str) -> ProbeResult | None:
    """Of runs that were not skipped, the newest last: the newest, or one before it that no later success has answered.

    What was not `ok` is answered by a success on all GPUs of the host, or on all of that run's.
    """
    found: ProbeResult | None = None
    later: list[ProbeResult] = []
    for run in reversed([one for one in runs if one.probe == probe]):
        if found is None or (run.outcome != "ok" and not any(_covers(one, run) for one in later)):
            found = run
        if found.outcome not in SUCCESSES or (run.is_whole and run.outcome in DECISIVE):
            break
        if run.outcome in SUCCESSES:
            later.append(run)
    return found


def checked(runs: Iterable[ProbeResult], probe: str) -> ProbeResult | None:
    """The same of those that checked all of their data."""
    return standing([one for one in runs if one.outcome in DECISIVE], probe)


def newest(runs: Sequence[ProbeResult], probe: str) -> ProbeResult | None:
    """The last one, whatever it answers."""
    return next((one for one in reversed(runs) if one.probe == probe), None)


def _covers(later: ProbeResult, earlier: ProbeResult) -> bool:
    return set(later.conditions.gpus) >= set(earlier.conditions.gpus)
