"""Concludes the result of a run from the reports of its ranks. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpumon.probe.core.baseline import Judge
from gpumon.probe.core.evidence import NO_OBSERVATIONS, Observations, finding_sentences
from gpumon.probe.core.frames import SETUP_STAGES
from gpumon.probe.core.locate import locate
from gpumon.probe.core.next_step import comparisons
from gpumon.probe.core.passes import Ending, Pass, measurements, wrong_elements
from gpumon.probe.core.plan import Plan, Run, memory_needed_on_cpu
from gpumon.probe.core.preflight import Skip
from gpumon.probe.core.probes import ALL_REDUCE, MIB, Probe
from gpumon.probe.core.remedies import file_system_hint, interpreter_hint, log_hint, remedy, torch_installation
from gpumon.probe.core.result import DECISIVE, LIMIT, SUCCESSES, Comparison, Location, ProbeResult
from gpumon.probe.core.ring_comparison import compare_algorithms, missing_gain
from gpumon.probe.core.wording import in_words, size_in_words

LOCATED = ("degraded", "wrong")
BROKEN = ("failed", "timeout")
"""Outcomes whose hint includes findings about the GPUs, because a finding may be the cause."""
LOG_LIMIT = 64 * 1024
"""Max characters of output in a result's log, for all ranks together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    outcome: str
    reason: str = ""
    hint: str = ""
    remedy: str = ""
    """Advice for the operator, placed at the end of the result's hint."""


def conclude(
    run: Run, passes: Sequence[Pass], judge: Judge, duration: float, observations: Observations = NO_OBSERVATIONS
) -> ProbeResult:
    """Return the result of a run from its passes, of which there is at least one. `duration`: seconds of the run."""
    measured = [measurement for run_pass in passes for measurement in measurements(run_pass)]
    compared = [comparison for run_pass in passes for comparison in comparisons(run_pass, judge)]
    verdict = _judge(passes, judge)
    location = _location(passes, observations) if verdict.outcome in LOCATED else None
    last = passes[-1]
    wrong = [count for count in map(wrong_elements, passes) if count is not None]
    return ProbeResult(
        id=run.id,
        probe=last.plan.probe.name,
        outcome=verdict.outcome,
        reason=verdict.reason,
        hint=_hint(verdict, last.plan, compared, judge, location=location, observations=observations),
        trigger=run.trigger,
        started=run.started,
        duration_seconds=duration,
        backend=last.plan.setting.backend,
        ranks=0 if verdict.outcome == "skipped" else last.plan.ranks,
        versions=next((run_pass.versions for run_pass in passes if run_pass.versions), {}),
        conditions=judge.conditions,
        measurements=tuple(measured),
        comparisons=tuple(compared),
        location=location,
        wrong_elements=sum(wrong) if wrong else None,
        settings=passes[0].plan.settings,
        log="" if verdict.outcome in {"ok", "skipped"} else _log(passes),
        simulated=last.plan.simulated,
    )


def _location(passes: Sequence[Pass], observations: Observations) -> Location | None:
    """Return the location from the first pass that blames a rank, else from the first pass that has one."""
    locations = list(filter(None, (locate(run_pass, observations) for run_pass in passes)))
    return next((location for location in locations if location.ranks), locations[0] if locations else None)


def _hint(
    verdict: _Verdict,
    plan: Plan,
    compared: Sequence[Comparison],
    judge: Judge,
    *,
    location: Location | None,
    observations: Observations,
) -> str:
    if verdict.outcome in BROKEN:
        return " ".join((verdict.hint, *finding_sentences(observations)))
    algorithms = ""
    if verdict.outcome in SUCCESSES:
        algorithms = compare_algorithms(compared) or missing_gain(compared, judge.gain)
    where = location.message if location is not None else ""
    left_out = _unmeasured_sizes(plan) if verdict.outcome in DECISIVE else ""
    return " ".join(filter(None, (verdict.hint, algorithms, where, left_out, verdict.remedy)))


def _unmeasured_sizes(plan: Plan) -> str:
    if not plan.left_out or plan.free is None:
        return ""
    probe, smallest = plan.probe, min(plan.left_out)
    sizes = " and ".join(size_in_words(size, probe.size_unit) for size in plan.left_out)
    needed = memory_needed_on_cpu(probe, smallest, plan.ranks)
    return (
        f"Not measured for lack of memory: {sizes}. {plan.free / MIB:.0f} MiB were free on the host, or in the agent's "
        f"cgroup; for {size_in_words(smallest, probe.size_unit)} the {plan.ranks} ranks need {needed / MIB:.0f}."
    )


def unjudged_result(run: Run, plan: Plan, error: Exception, duration: float) -> ProbeResult:
    """Return a failed result, which blames no GPU, for a run that was not judged because of an error in the agent."""
    hint = f"The agent failed to judge this run: {error!r}. Report it together with the agent's log."
    return replace(
        skipped_result(plan.probe, run, Skip(reason="setup", hint=hint), simulated=plan.simulated),
        outcome="failed",
        duration_seconds=duration,
        backend=plan.setting.backend,
        ranks=plan.ranks,
    )


def skipped_result(probe: Probe, run: Run, skip: Skip, *, simulated: bool = False) -> ProbeResult:
    """Return a result with the outcome skipped, for a run that made no pass or whose agent was killed."""
    return ProbeResult(
        id=run.id,
        probe=probe.name,
        outcome="skipped",
        reason=skip.reason,
        hint=skip.hint,
        trigger=run.trigger,
        started=run.started,
        simulated=simulated,
    )


def _judge_wrong(run_pass: Pass, _ending: Ending) -> _Verdict | None:
    figures = [(account.rank, [*account.sizes.values(), *account.pairs.values()]) for account in run_pass.accounts]
    ranks = [str(rank) for rank, sizes in figures if any(sized.wrong for sized in sizes)]
    if not ranks:
        return None
    hint = f"Silent data corruption on rank {', '.join(ranks)}."
    return _Verdict(outcome="wrong", hint=hint, remedy="Take the node out of service and run again.")


def _judge_ending(run_pass: Pass, ending: Ending) -> _Verdict | None:
    if ending.abandoned:
        pids = ", ".join(map(str, ending.abandoned))
        stages = {account.progress.stage for account in run_pass.accounts if account.pid in ending.abandoned}
        files = file_system_hint(run_pass, next(iter(stages))) if len(stages) == 1 else ""
        where = f"at a file. {files} If it remains, drain" if files else "in the driver. Drain"
        hint = f"SIGKILL does not end pid {pids}: it is blocked in the kernel, most likely {where} and reboot the node."
        if ending.aborted is not None:
            hint = f"{hint} The run was ended ({ending.aborted.reason}): {ending.aborted.hint}"
        return _Verdict(outcome="timeout", reason="unkillable", hint=hint)
    if ending.aborted is not None:
        return _Verdict(outcome="skipped", reason=ending.aborted.reason, hint=ending.aborted.hint)
    if ending.not_started:
        advice = remedy(ending.not_started) or "Check that the agent's own Python still exists, and restart the agent."
        hint = f"The ranks could not be started: {ending.not_started}. {advice}"
        return _Verdict(outcome="failed", reason="setup", hint=hint)
    return None


def _judge_no_torch(run_pass: Pass, _ending: Ending) -> _Verdict | None:
    if not any(account.absent for account in run_pass.accounts):
        return None
    python = run_pass.plan.python
    hint = (
        f"{python} has no PyTorch. Install it with `{torch_installation(python)}`, "
        "and let probe.python name the interpreter that has it."
    )
    return _Verdict(outcome="skipped", reason="no_torch", hint=hint)


def _judge_late(run_pass: Pass, ending: Ending) -> _Verdict | None:
    if not ending.timed_out or _is_complete(run_pass):
        return None
    behind = min(run_pass.accounts, key=lambda account: (account.done, account.progress.ratio)).progress
    unit = run_pass.plan.probe.size_unit
    places = "; ".join(f"rank {account.rank}: {account.progress.place(unit)}" for account in run_pass.accounts)
    output = "".join(_printable_text(account.output) for account in run_pass.accounts)
    # a later pass has only the rest of the deadline, and the first pass has already read the files of torch
    whole = ending.duration > run_pass.plan.deadline / 2
    advice = remedy(output) or (whole and file_system_hint(run_pass, behind.stage)) or log_hint(run_pass)
    hint = f"Not done after {run_pass.plan.deadline:g} s ({places}). {advice}"
    return _Verdict(outcome="timeout", reason=behind.stage, hint=hint)


def _judge_failed(run_pass: Pass, ending: Ending) -> _Verdict | None:
    if _is_complete(run_pass):
        return None
    accounts = run_pass.accounts
    cause = next((account for account in accounts if account.rank == ending.first_failed), accounts[0])
    device = f" ({run_pass.plan.gpus[cause.rank]})" if run_pass.plan.gpus else ""
    place = cause.progress.place(run_pass.plan.probe.size_unit)
    hint = f"Rank {cause.rank}{device} at {place}: {cause.error or _describe_exit(cause.status)}."
    output = _printable_text(cause.output)
    hint += f" {remedy(cause.error + output) or interpreter_hint(run_pass, cause) or log_hint(run_pass)}"
    return _Verdict(outcome="failed", reason="setup" if cause.progress.stage in SETUP_STAGES else "ranks", hint=hint)


_JUDGES = (_judge_wrong, _judge_ending, _judge_no_torch, _judge_late, _judge_failed)
"""Functions that judge one pass, in the order of their precedence. Each returns None if it finds no fault."""


def _judge(passes: Sequence[Pass], judge: Judge) -> _Verdict:
    for decide in _JUDGES:
        for run_pass in passes:
            verdict = decide(run_pass, run_pass.ending)
            if verdict is not None:
                return verdict
    return _judge_degraded(passes, judge) or _Verdict(outcome="ok", hint=_missing_median(passes, judge))


def _missing_median(passes: Sequence[Pass], judge: Judge) -> str:
    first = passes[0]
    without = [comparison for comparison in comparisons(first, judge) if comparison.baseline is None]
    if not without:
        return ""
    comparison = without[-1]
    changes = judge.changed_conditions(first.plan.ranks, first.versions)
    because = f" ({changes})" if changes else ""
    counts = f"{comparison.runs} of {comparison.runs_needed}"
    return f"This host has no median of its own yet: {counts} runs like this one{because}."


def _judge_degraded(passes: Sequence[Pass], judge: Judge) -> _Verdict | None:
    """Judge the values. The hint names one size: in the first pass with low values, the last size that is low."""
    low = next(filter(None, (comparisons(run_pass, judge, low=True) for run_pass in passes)), ())
    if not low:
        return _below_limit(passes, judge)
    comparison = low[-1]
    value, unit, usual = comparison.value, comparison.unit, comparison.usual or comparison.value
    what = f"{comparison.operation} ({comparison.variant(judge.probe)}) of {comparison.size} {comparison.size_unit}"
    whose = {
        "baseline": "this host's own median",
        "drift": f"this host's best median, in runs up to {comparison.best_date}; it has fallen slowly since",
        "expected": comparison.source,
    }[comparison.below_reference]
    hint = (
        f"{what} measured {in_words(value, unit, '.2f')} twice: {value / usual:.0%} of "
        f"{in_words(usual, unit, '.2f')} ({whose})."
    )
    return _Verdict(outcome="degraded", reason=comparison.below_reference, hint=hint)


def _below_limit(passes: Sequence[Pass], judge: Judge) -> _Verdict | None:
    limit = judge.floors.limit
    if limit is None or judge.probe != ALL_REDUCE:
        return None
    for run_pass in passes:
        measured = measurements(run_pass)
        best = max(measured, key=lambda measurement: measurement.value)
        if best.value < limit:
            hint = (
                f"The {best.algorithm} all-reduce measured {in_words(best.value, best.unit, '.3g')} at its best "
                f"size; the configured limit is {in_words(limit, best.unit, '.3g')}."
            )
            return _Verdict(outcome="degraded", reason=LIMIT, hint=hint)
    return None


def _is_complete(run_pass: Pass) -> bool:
    ended = all(account.done and account.status == 0 and not account.error for account in run_pass.accounts)
    return run_pass.complete and ended


def _describe_exit(status: int | None) -> str:
    if status == -signal.SIGKILL:
        return "it was killed (SIGKILL), by the kernel if memory ran out: see the kernel log"
    if status is not None and status < 0:
        return f"it ended by signal {-status} ({signal.strsignal(-status)}): see the kernel log"
    return f"it ended with status {status} without a result"


def _log(passes: Sequence[Pass]) -> str:
    accounts = passes[-1].accounts
    share = LOG_LIMIT // max(1, len(accounts))
    parts = ((account.rank, _printable_text(account.output).strip()) for account in accounts)
    return "\n".join(f"rank {rank}:\n{text[-share:]}" for rank, text in parts if text)


def _printable_text(output: bytes) -> str:
    """Return the output of a rank without control characters other than newline and tab."""
    return "".join(
        character for character in output.decode(errors="replace") if character.isprintable() or character in "\n\t"
    )
