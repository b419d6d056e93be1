"""The state of probes in the Report, and functions that update it with results. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpumon.probe.core.baseline import good_runs
from gpumon.probe.core.frames import Progress
from gpumon.probe.core.probe_metrics import ProbeMetrics, fold_result, with_running
from gpumon.probe.core.probes import ALL_REDUCE
from gpumon.probe.core.result import ProbeCounters, ProbeResult, checked_result, current_result, newest_result

_NONE = ProbeCounters()
MAX_RESULTS = 200
"""Max number of results of a probe in memory, whatever their outcome. While jobs run, most of them are skips."""
AFTERGLOW_SECONDS = 3.0
"""Seconds after a run in which readings may still show its load: two later polls may cover part of the run."""
MAX_COMPLETED_RUNS = 20
"""Max number of results of a probe in memory that are not skips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeState:
    """State of the probes in the Report. MAX_RESULTS and MAX_COMPLETED_RUNS apply to each probe separately."""

    metrics: Mapping[str, ProbeMetrics] = field(default_factory=dict)
    """Metrics by name of the probe, for scheduled probes and those that have run."""
    history: tuple[ProbeResult, ...] = ()
    """The newest results of all probes, including skipped runs, newest last."""
    ran: tuple[ProbeResult, ...] = ()
    """The newest results that are not skips, newest last; never without those that determine the current state."""
    good: tuple[ProbeResult, ...] = ()
    """Results with the outcome ok, from which baselines are computed, newest last (`good_runs`)."""
    running: str | None = None
    """Id of the run in progress; None if there is none."""
    running_probe: str = ALL_REDUCE
    """Name of the probe in progress, or of the last one."""
    progress: Progress | None = None
    """Progress of the slowest rank of the run in progress; None if there is none."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that the run in progress uses."""
    loaded: tuple[str, ...] = ()
    """UUIDs of the GPUs that the last run used. Their readings may show the load of that run until `loaded_until`."""
    loaded_until: float = 0.0
    """Time on the boot clock, in seconds, until which `loaded` GPUs may show load of the last run."""
    next_runs: Mapping[str, float] = field(default_factory=dict)
    """Wall time of the next scheduled run of each scheduled probe, in seconds since the epoch, by name of the probe."""
    began_at: float = 0.0
    ended_at: Mapping[str, float] = field(default_factory=dict)
    """Uptime in seconds at which the agent began, and at which the last run of a probe that was not skipped ended."""
    free_since: float | None = None
    """Uptime since which no process uses a GPU, all are readable, and no hold, maintenance or release is active."""
    unkillable: tuple[int, ...] = ()

    def own_load(self, at: float) -> tuple[str, ...]:
        """Return the UUIDs of the GPUs whose load the probe may cause at the time `at` (seconds on the boot clock)."""
        return (*self.gpus, *(self.loaded if at < self.loaded_until else ()))

    def last(self, probe: str) -> ProbeResult | None:
        """Return the newest result of a probe, including skipped runs; None if there is none."""
        return newest_result(self.history, probe)

    @property
    def results(self) -> tuple[ProbeResult, ...]:
        """Return all results in memory, without duplicates, newest last."""
        each = {result.id: result for result in (*self.good, *self.ran, *self.history)}
        return tuple(sorted(each.values(), key=lambda result: result.started))


def begin_run(state: ProbeState, run: str, probe: str, gpus: tuple[str, ...] = ()) -> ProbeState:
    """Return the state after the start of a run. `run`: id of the run. `gpus`: UUIDs of the GPUs that it uses."""
    metrics = with_running(state.metrics, running=True)
    return replace(state, running=run, running_probe=probe, gpus=gpus, metrics=metrics)


def end_run(state: ProbeState, result: ProbeResult, *, at: float = 0.0, uptime: float = 0.0) -> ProbeState:
    """Return the state after a run. `at`, `uptime`: now, in seconds on the boot clock and since the agent's start."""
    own = state.running in {None, result.id}  # another run may have begun before this result was stored
    if own and state.gpus:
        state = replace(state, gpus=(), loaded=state.gpus, loaded_until=at + AFTERGLOW_SECONDS)
    return replace(
        _append(state, result),
        running=None if own else state.running,
        progress=None if own else state.progress,
        metrics=fold_result(with_running(state.metrics, running=not own), result, state.ran),
        ended_at=state.ended_at if result.outcome == "skipped" else {**state.ended_at, result.probe: uptime},
    )


def restore(state: ProbeState, results: Sequence[ProbeResult], counters: Mapping[str, ProbeCounters]) -> ProbeState:
    """Return the state with the stored results, newest last, and run counts by probe added to those since the start."""
    metrics, since = state.metrics, state.history
    counted = state.metrics
    stored = {result.id for result in results}
    state = replace(state, history=(), ran=(), good=())
    for result in (*results, *(result for result in since if result.id not in stored)):
        metrics = fold_result(metrics, result, state.ran)
        state = _append(state, result)
    totals = {}
    for probe, table in metrics.items():
        before, own = counters.get(probe, _NONE), counted.get(probe)
        totals[probe] = replace(
            table,
            runs_total=_sum(before.outcomes, None if own is None else own.runs_total),
            skips_total=_sum(before.reasons, None if own is None else own.skips_total),
        )
    return replace(state, metrics=totals)


def _sum(stored: Mapping[str, int], since: Mapping[str, float] | None) -> dict[str, float]:
    since = since or {}
    return {name: stored.get(name, 0) + since.get(name, 0.0) for name in dict.fromkeys((*since, *stored))}


def _append(state: ProbeState, result: ProbeResult) -> ProbeState:
    runs = (*state.ran, result)
    current = current_result(runs, result.probe), checked_result(runs, result.probe)
    needed = {run.id for run in current if run is not None}
    return replace(
        state,
        history=_newest_results(state.history, result, MAX_RESULTS),
        ran=state.ran
        if result.outcome == "skipped"
        else _newest_results(state.ran, result, MAX_COMPLETED_RUNS, needed),
        good=good_runs(state.good, result),
    )


def _newest_results(
    results: Sequence[ProbeResult], result: ProbeResult, limit: int, needed: Collection[str] = ()
) -> tuple[ProbeResult, ...]:
    """Return the results with `result`, without the oldest of its probe beyond `limit` whose id is not `needed`."""
    same = [run.id for run in results if run.probe == result.probe and run.id not in needed]
    crowded = set(same[: max(0, len(same) + 1 - limit)])
    return (*(run for run in results if run.id not in crowded), result)
