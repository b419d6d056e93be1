"""The probes as they stand, and how their results change that. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from gpumon.probe.core.baseline import good_runs
from gpumon.probe.core.current_result import checked, standing
from gpumon.probe.core.frames import Progress
from gpumon.probe.core.metrics import AllReduce, fold_result
from gpumon.probe.core.probes import ALL_REDUCE
from gpumon.probe.core.result import OUTCOMES, SKIP_REASONS, ProbeResult

MOST_RESULTS = 200
"""The newest, whatever their outcome: most of them skips, where jobs run."""
AFTERGLOW_SECONDS = 3.0
"""How long after a run a GPU may still show its load: two polls, of which the first looks back on it."""
MOST_RAN = 20
"""The newest of those that were not skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeState:
    """The probes as they stand; what is bounded, is for each probe by itself."""

    metrics: AllReduce = AllReduce()
    """Of the all-reduce, but for `running`: any run loads the GPUs."""
    last: ProbeResult | None = None
    """Of the all-reduce."""
    history: tuple[ProbeResult, ...] = ()
    """Newest last, bounded."""
    ran: tuple[ProbeResult, ...] = ()
    """Those that were not skipped, however many skips have come since: newest last, bounded, but for what stands."""
    good: tuple[ProbeResult, ...] = ()
    """Those from which baselines are made: newest last, bounded for each of the conditions under which they ran."""
    running: str | None = None
    """Id of the run in progress."""
    running_probe: str = ALL_REDUCE
    """Of which probe it is, or the last one was."""
    progress: Progress | None = None
    """Where its slowest rank is."""
    gpus: tuple[str, ...] = ()
    """UUIDs of those that it loads."""
    loaded: tuple[str, ...] = ()
    """Those that the run before has loaded: until `loaded_until` they may still show it."""
    loaded_until: float = 0.0
    """Boot clock."""
    next_run: float | None = None
    """Wall time of the next scheduled run."""
    told_at: float = 0.0
    """When a run of the all-reduce last ended that was not skipped, else the agent began: as Now.uptime."""
    free_since: float | None = None
    """Since when nothing but the agent itself has been in the way of a run, likewise; None: something is."""
    unkillable: tuple[int, ...] = ()
    """Pids of ranks that SIGKILL does not end."""

    def own_load(self, at: float) -> tuple[str, ...]:
        """UUIDs of the GPUs whose load is the probe's at this moment of the boot clock."""
        return (*self.gpus, *(self.loaded if at < self.loaded_until else ()))

    @property
    def known(self) -> tuple[ProbeResult, ...]:
        """All results that are remembered, each once, the newest last."""
        each = {one.id: one for one in (*self.good, *self.ran, *self.history)}
        return tuple(sorted(each.values(), key=lambda one: one.started))


def started(state: ProbeState, run: str, probe: str, gpus: tuple[str, ...] = ()) -> ProbeState:
    """A run began; from now on it loads these GPUs."""
    return replace(state, running=run, running_probe=probe, gpus=gpus, metrics=replace(state.metrics, running=1.0))


def ended(state: ProbeState, result: ProbeResult, *, at: float = 0.0, uptime: float = 0.0) -> ProbeState:
    """A run has ended, or was skipped. `at` and `lived`: now, on the clocks of Now."""
    own = state.running in {None, result.id}  # another may have begun while the disk took its time with this result
    if own and state.gpus:
        state = replace(state, gpus=(), loaded=state.gpus, loaded_until=at + AFTERGLOW_SECONDS)
    return replace(
        _with(state, result),
        running=None if own else state.running,
        progress=None if own else state.progress,
        metrics=fold_result(replace(state.metrics, running=0.0 if own else 1.0), result, state.ran),
        told_at=uptime if (result.probe, result.outcome != "skipped") == (ALL_REDUCE, True) else state.told_at,
    )


def recalled(
    state: ProbeState, results: Sequence[ProbeResult], runs: Mapping[str, float], skips: Mapping[str, float]
) -> ProbeState:
    """What the store knew, the newest last: of what was counted, it knows more than these results."""
    metrics, since = state.metrics, state.history
    known = {one.id for one in results}
    state = replace(state, last=None, history=(), ran=(), good=())
    for result in (*results, *(one for one in since if one.id not in known)):
        metrics = fold_result(metrics, result, state.ran)
        state = _with(state, result)
    metrics = replace(
        metrics,
        runs_total=dict.fromkeys(OUTCOMES, 0.0) | dict(runs),
        skips_total=dict.fromkeys(SKIP_REASONS, 0.0) | dict(skips),
    )
    return replace(state, metrics=metrics)


def _with(state: ProbeState, result: ProbeResult) -> ProbeState:
    """This result is the newest."""
    return replace(
        state,
        last=result if result.probe == ALL_REDUCE else state.last,
        history=_newest(state.history, result, MOST_RESULTS),
        ran=state.ran
        if result.outcome == "skipped"
        else _newest(state.ran, result, MOST_RAN, _standing(state, result)),
        good=good_runs(state.good, result),
    )


def _standing(state: ProbeState, result: ProbeResult) -> Collection[str]:
    """Ids of the runs that tell how this result's probe stands."""
    runs = (*state.ran, result)
    told = standing(runs, result.probe), checked(runs, result.probe)
    return {one.id for one in told if one is not None}


def _newest(
    known: Sequence[ProbeResult], result: ProbeResult, most: int, needed: Collection[str] = ()
) -> tuple[ProbeResult, ...]:
    """With this result, so many of its probe, and those that are needed."""
    same = [one.id for one in known if one.probe == result.probe and one.id not in needed]
    crowded = set(same[: max(0, len(same) + 1 - most)])
    return (*(one for one in known if one.id not in crowded), result)
