"""Conclude the result of a run from what its ranks reported. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from gpumon.probe.core.baseline import Judge
from gpumon.probe.core.evidence import NOTHING_SEEN, AllSeen, finding_sentences
from gpumon.probe.core.frames import SETUP_STAGES
from gpumon.probe.core.locate import locate
from gpumon.probe.core.next_step import comparisons
from gpumon.probe.core.nvlink_sharp import compare_algorithms, missing_gain
from gpumon.probe.core.passes import Ending, Pass, measurements, wrong_elements
from gpumon.probe.core.plan import Plan, Run, memory_needed_on_cpu
from gpumon.probe.core.preflight import Skip
from gpumon.probe.core.probes import MIB, Probe
from gpumon.probe.core.remedies import file_system_hint, interpreter_hint, log_hint, remedy
from gpumon.probe.core.result import DECISIVE, SUCCESSES, Comparison, Location, ProbeResult

LOCATED = ("degraded", "wrong")
"""Outcomes for which the fault is located."""
BROKEN = ("failed", "timeout")
"""Outcomes for which GPU readings may show the cause."""
LOG_LIMIT = 64 * 1024
"""Max length of a result's log in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    outcome: str
    reason: str = ""
    hint: str = ""
    remedy: str = ""
    """Comes after everything else."""


def conclude(
    run: Run, passes: Sequence[Pass], judge: Judge, duration: float, seen: AllSeen = NOTHING_SEEN
) -> ProbeResult:
    """Return the result of a run that made at least one pass, however it ended.

    `duration`: seconds. `seen`: readings of its GPUs during the run.
    """
    found = [one for each in passes for one in measurements(each)]
    compared = [one for each in passes for one in comparisons(each, judge)]
    verdict = _judge(passes, judge)
    location = _location(passes, seen) if verdict.outcome in LOCATED else None
    last = passes[-1]
    wrong = [one for one in map(wrong_elements, passes) if one is not None]
    return ProbeResult(
        id=run.id,
        probe=last.plan.probe.name,
        outcome=verdict.outcome,
        reason=verdict.reason,
        hint=_hint(verdict, last.plan, _apart(verdict, compared, judge), location, seen),
        trigger=run.trigger,
        started=run.started,
        duration_seconds=duration,
        backend=last.plan.setting.backend,
        ranks=0 if verdict.outcome == "skipped" else last.plan.ranks,
        versions=next((each.versions for each in passes if each.versions), {}),
        conditions=judge.conditions,
        measurements=tuple(found),
        comparisons=tuple(compared),
        location=location,
        wrong_elements=sum(wrong) if wrong else None,
        settings=passes[0].plan.settings,
        log="" if verdict.outcome in {"ok", "skipped"} else _log(passes),
        simulated=last.plan.simulated,
    )


def _location(passes: Sequence[Pass], seen: AllSeen) -> Location | None:
    """Return the first location that names a rank, else the first of any."""
    found = [one for one in (locate(each, seen) for each in passes) if one is not None]
    return next((one for one in found if one.ranks), found[0] if found else None)


def _apart(verdict: _Verdict, compared: Sequence[Comparison], judge: Judge) -> str:
    """Return what the two algorithms show together, if both were measured."""
    if verdict.outcome not in SUCCESSES:
        return ""
    return compare_algorithms(compared) or missing_gain(compared, judge.gain)


def _hint(verdict: _Verdict, plan: Plan, apart: str, location: Location | None, seen: AllSeen) -> str:
    """Return the hint. The remedy comes last."""
    if verdict.outcome in BROKEN:
        return " ".join((verdict.hint, *finding_sentences(seen)))
    where = location.sentence if location is not None else ""
    left_out = _left_out(plan) if verdict.outcome in DECISIVE else ""
    return " ".join(filter(None, (verdict.hint, apart, where, left_out, verdict.remedy)))


def _left_out(plan: Plan) -> str:
    """Return which sizes were not measured for lack of memory."""
    if not plan.left_out or plan.free is None:
        return ""
    sizes = " and ".join(f"{size / MIB:g} MiB" for size in plan.left_out)
    least = min(plan.left_out)
    needed = memory_needed_on_cpu(least, plan.ranks)
    return (
        f"Not measured for lack of memory: {sizes}. {plan.free / MIB:.0f} MiB were free on the host, or in the agent's "
        f"cgroup; for {least / MIB:g} MiB the {plan.ranks} ranks need {needed / MIB:.0f}."
    )


def unjudged(run: Run, plan: Plan, error: Exception, duration: float) -> ProbeResult:
    """Return the result of a run that the agent failed to judge. It does not blame any GPU."""
    return ProbeResult(
        id=run.id,
        probe=plan.probe.name,
        outcome="failed",
        reason="setup",
        hint=f"The agent failed to judge this run: {error!r}. Report it together with the agent's log.",
        trigger=run.trigger,
        started=run.started,
        duration_seconds=duration,
        backend=plan.setting.backend,
        ranks=plan.ranks,
        simulated=plan.simulated,
    )


def skipped(probe: Probe, run: Run, skip: Skip, *, simulated: bool = False) -> ProbeResult:
    """Return the result of a run that preflight or an abort prevented."""
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


def _wrong(one: Pass, _ending: Ending) -> _Verdict | None:
    told = [(account.rank, [*account.sizes.values(), *account.pairs.values()]) for account in one.accounts]
    ranks = [str(rank) for rank, sized in told if any(each.wrong for each in sized)]
    if not ranks:
        return None
    seen = f"Silent data corruption, seen on rank {', '.join(ranks)}."
    return _Verdict(outcome="wrong", hint=seen, remedy="Take the node out of service and run again.")


def _unkillable(one: Pass, ending: Ending) -> _Verdict | None:
    if not ending.abandoned:
        return None
    pids = ", ".join(map(str, ending.abandoned))
    stages = {account.progress.stage for account in one.accounts if account.pid in ending.abandoned}
    files = file_system_hint(one, next(iter(stages))) if len(stages) == 1 else ""
    where = f"at a file. {files} If it remains, reboot the node." if files else "in the driver. Reboot the node."
    hint = f"SIGKILL does not end pid {pids}: it is blocked in the kernel, most likely {where}"
    if ending.aborted is not None:
        hint = f"{hint} The run was ended ({ending.aborted.reason}): {ending.aborted.hint}"
    return _Verdict(outcome="timeout", reason="unkillable", hint=hint)


def _aborted(_one: Pass, ending: Ending) -> _Verdict | None:
    if ending.aborted is None:
        return None
    return _Verdict(outcome="skipped", reason=ending.aborted.reason, hint=ending.aborted.hint)


def _not_started(_one: Pass, ending: Ending) -> _Verdict | None:
    if not ending.not_started:
        return None
    known = remedy(ending.not_started) or "Check that the agent's own Python still exists, and restart the agent."
    hint = f"The ranks could not be started: {ending.not_started}. {known}"
    return _Verdict(outcome="failed", reason="setup", hint=hint)


def _no_torch(one: Pass, _ending: Ending) -> _Verdict | None:
    if not any(account.absent for account in one.accounts):
        return None
    python = one.plan.python
    hint = (
        f"{python} has no PyTorch. Install it with `{python} -m pip install torch`, "
        "or let probe.python name an interpreter that has it."
    )
    return _Verdict(outcome="skipped", reason="no_torch", hint=hint)


def _late(one: Pass, ending: Ending) -> _Verdict | None:
    if not ending.timed_out or _complete(one):
        return None
    behind = min(one.accounts, key=lambda account: (account.done, account.progress.ratio)).progress
    places = "; ".join(f"rank {account.rank}: {account.progress}" for account in one.accounts)
    said = "".join(_printable(account.output) for account in one.accounts)
    whole = (
        ending.duration > one.plan.deadline / 2
    )  # a later pass has only the rest of the deadline, and the first has read the files
    known = remedy(said) or (whole and file_system_hint(one, behind.stage)) or log_hint(one)
    hint = f"Not done after {one.plan.deadline:g} s ({places}). {known}"
    return _Verdict(outcome="timeout", reason=behind.stage, hint=hint)


def _failed(one: Pass, ending: Ending) -> _Verdict | None:
    if _complete(one):
        return None
    cause = next((each for each in one.accounts if each.rank == ending.first_failed), one.accounts[0])
    device = f" ({one.plan.gpus[cause.rank]})" if one.plan.gpus else ""
    hint = f"Rank {cause.rank}{device} at {cause.progress}: {cause.error or _exit(cause.status)}."
    known = (interpreter_hint(one, cause), remedy(cause.error + _printable(cause.output)))
    hint = " ".join((hint, *(filter(None, known) if any(known) else (log_hint(one),))))
    return _Verdict(outcome="failed", reason="setup" if cause.progress.stage in SETUP_STAGES else "ranks", hint=hint)


_JUDGES = (_wrong, _unkillable, _aborted, _not_started, _no_torch, _late, _failed)
"""In this order: the most serious outcome first."""


def _judge(passes: Sequence[Pass], judge: Judge) -> _Verdict:
    for decide in _JUDGES:
        for one in passes:
            verdict = decide(one, one.ending or Ending(duration=0.0))
            if verdict is not None:
                return verdict
    return _degraded(passes, judge) or _Verdict(outcome="ok", hint=_without_median(passes, judge))


def _without_median(passes: Sequence[Pass], judge: Judge) -> str:
    """Return why there is no median yet; empty if there is one."""
    first = passes[0]
    short = [one for one in comparisons(first, judge) if one.baseline is None]
    if not short:
        return ""
    one = short[-1]
    news = judge.news(first.plan.ranks, first.versions)
    because = f" ({news})" if news else ""
    return f"This host has no median of its own yet: {one.runs} of {one.runs_needed} runs like this one{because}."


def _degraded(passes: Sequence[Pass], judge: Judge) -> _Verdict | None:
    """Return the verdict on the largest size of the first pass that is low."""
    for one in passes:
        low = comparisons(one, judge, low=True)
        if low:
            return _fallen_short(low[-1])
    return None


def _fallen_short(one: Comparison) -> _Verdict:
    usual = one.usual or one.busbw
    whose = {
        "baseline": "this host's own median",
        "drift": f"this host's best median, in runs up to {one.best_date}; it has fallen slowly since",
        "expected": one.source,
    }[one.low]
    hint = (
        f"{one.collective} ({one.algorithm}) of {one.bytes} bytes measured {one.busbw / 1e9:.2f} GB/s twice: "
        f"{one.busbw / usual:.0%} of {usual / 1e9:.2f} GB/s ({whose})."
    )
    return _Verdict(outcome="degraded", reason=one.low, hint=hint)


def _complete(one: Pass) -> bool:
    ended = all(account.done and account.status == 0 and not account.error for account in one.accounts)
    return one.complete and ended


def _exit(status: int | None) -> str:
    if status == -signal.SIGKILL:
        return "it was killed (SIGKILL), by the kernel if memory ran out: see the kernel log"
    if status is not None and status < 0:
        return f"it ended by signal {-status} ({signal.strsignal(-status)}): see the kernel log"
    return f"it ended with status {status} without a result"


def _log(passes: Sequence[Pass]) -> str:
    """Return the output of the last pass, which is the one that failed."""
    accounts = passes[-1].accounts
    share = LOG_LIMIT // max(1, len(accounts))
    parts = ((account.rank, _printable(account.output).strip()) for account in accounts)
    return "\n".join(f"rank {rank}:\n{text[-share:]}" for rank, text in parts if text)


def _printable(output: bytes) -> str:
    """Return text without characters that could control a terminal."""
    return "".join(one for one in output.decode(errors="replace") if one.isprintable() or one in "\n\t")
