"""State of the probes, and how results change it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpumon.probe.core.baseline import good_runs
from gpumon.probe.core.current_result import checked_result, current_result
from gpumon.probe.core.frames import Progress
from gpumon.probe.core.probe_metrics import AllReduce, fold_result
from gpumon.probe.core.probes import ALL_REDUCE
from gpumon.probe.core.result import OUTCOMES, SKIP_REASONS, ProbeResult

MAX_RESULTS = 200
"""Max results of a probe, whatever their outcome: mostly skips if jobs run."""
AFTERGLOW_SECONDS = 3.0
"""How long after a run a GPU may still show its load: two polls, of which the first covers the time before it."""
MAX_COMPLETED_RUNS = 20
"""Max results of a probe that are not skips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeState:
    """State of the probes. Limits apply to each probe by itself."""

    metrics: AllReduce = AllReduce()
    """Metrics of the all-reduce; `running` is for all probes, because each of them loads the GPUs."""
    last: ProbeResult | None = None
    """Last result of the all-reduce."""
    history: tuple[ProbeResult, ...] = ()
    """The newest results, newest last."""
    ran: tuple[ProbeResult, ...] = ()
    """The newest results that are not skips, newest last.

    Those that describe the current state of the probe are kept.
    """
    good: tuple[ProbeResult, ...] = ()
    """Results that make baselines, newest last, bounded for each set of conditions."""
    running: str | None = None
    """Id of the run in progress."""
    running_probe: str = ALL_REDUCE
    """Name of the probe in progress, or of the last one."""
    progress: Progress | None = None
    """Progress of its slowest rank."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that it loads."""
    loaded: tuple[str, ...] = ()
    """UUIDs of the GPUs that the last run loaded: they may show it until `loaded_until`."""
    loaded_until: float = 0.0
    """Boot clock."""
    next_run: float | None = None
    """Wall time of the next scheduled run."""
    last_ended_at: float = 0.0
    """End of the last all-reduce that was not skipped, else the start of the agent, as Now.uptime."""
    free_since: float | None = None
    """Time since which only the agent itself has prevented a run, as Now.uptime; None if something else prevents it."""
    unkillable: tuple[int, ...] = ()
    """Pids of ranks that SIGKILL does not end."""

    def own_load(self, at: float) -> tuple[str, ...]:
        """Return the UUIDs of GPUs whose load at this moment of the boot clock is the probe's."""
        return (*self.gpus, *(self.loaded if at < self.loaded_until else ()))

    @property
    def results(self) -> tuple[ProbeResult, ...]:
        """All results in memory, each once, newest last."""
        each = {result.id: result for result in (*self.good, *self.ran, *self.history)}
        return tuple(sorted(each.values(), key=lambda result: result.started))


def begin_run(state: ProbeState, run: str, probe: str, gpus: tuple[str, ...] = ()) -> ProbeState:
    """Return the state after a run began that loads these GPUs."""
    return replace(state, running=run, running_probe=probe, gpus=gpus, metrics=replace(state.metrics, running=1.0))


def end_run(state: ProbeState, result: ProbeResult, *, at: float = 0.0, uptime: float = 0.0) -> ProbeState:
    """Return the state after a run ended or was skipped. `at` and `uptime`: now, on the clocks of Now."""
    own = state.running in {None, result.id}  # another run may have begun before this result was stored
    if own and state.gpus:
        state = replace(state, gpus=(), loaded=state.gpus, loaded_until=at + AFTERGLOW_SECONDS)
    return replace(
        _append(state, result),
        running=None if own else state.running,
        progress=None if own else state.progress,
        metrics=fold_result(replace(state.metrics, running=0.0 if own else 1.0), result, state.ran),
        last_ended_at=uptime
        if (result.probe, result.outcome != "skipped") == (ALL_REDUCE, True)
        else state.last_ended_at,
    )


def restore(
    state: ProbeState, results: Sequence[ProbeResult], runs: Mapping[str, float], skips: Mapping[str, float]
) -> ProbeState:
    """Continue from the stored state, newest result last. Stored counters are added to those since the start."""
    counted, since = state.metrics, state.history
    metrics = counted
    stored = {result.id for result in results}
    state = replace(state, last=None, history=(), ran=(), good=())
    for result in (*results, *(result for result in since if result.id not in stored)):
        metrics = fold_result(metrics, result, state.ran)
        state = _append(state, result)
    metrics = replace(
        metrics,
        runs_total=_sum(OUTCOMES, runs, counted.runs_total or {}),
        skips_total=_sum(SKIP_REASONS, skips, counted.skips_total or {}),
    )
    return replace(state, metrics=metrics)


def _sum(names: Iterable[str], stored: Mapping[str, float], since: Mapping[str, float]) -> dict[str, float]:
    """Return the counters by name: what is stored, and what was counted since the start."""
    return {name: stored.get(name, 0.0) + since.get(name, 0.0) for name in dict.fromkeys((*names, *stored, *since))}


def _append(state: ProbeState, result: ProbeResult) -> ProbeState:
    """Return the state with this result as the newest."""
    return replace(
        state,
        last=result if result.probe == ALL_REDUCE else state.last,
        history=_newest(state.history, result, MAX_RESULTS),
        ran=state.ran
        if result.outcome == "skipped"
        else _newest(state.ran, result, MAX_COMPLETED_RUNS, _current_ids(state, result)),
        good=good_runs(state.good, result),
    )


def _current_ids(state: ProbeState, result: ProbeResult) -> Collection[str]:
    """Return the ids of the runs that describe this result's probe now."""
    runs = (*state.ran, result)
    current = current_result(runs, result.probe), checked_result(runs, result.probe)
    return {run.id for run in current if run is not None}


def _newest(
    results: Sequence[ProbeResult], result: ProbeResult, limit: int, needed: Collection[str] = ()
) -> tuple[ProbeResult, ...]:
    """Add this result, and remove old ones of its probe beyond the limit, except those with a `needed` id."""
    same = [run.id for run in results if run.probe == result.probe and run.id not in needed]
    crowded = set(same[: max(0, len(same) + 1 - limit)])
    return (*(run for run in results if run.id not in crowded), result)
