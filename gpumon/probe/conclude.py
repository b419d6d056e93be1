"""From what the ranks told to the result of the run. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from gpumon.probe.account import Account
from gpumon.probe.guard import Skip
from gpumon.probe.plan import Plan, Run
from gpumon.probe.probes import Probe
from gpumon.probe.result import Measurement, ProbeResult

SETUP_STAGES = ("start", "import", "join", "allocate")
"""Before the first operation: what fails here says nothing about the links."""
PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
LOG_LIMIT = 64 * 1024
"""Longest log of a result, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the run came to its end, as the agent saw it."""

    duration: float
    """Seconds."""
    timed_out: bool = False
    aborted: Skip | None = None
    not_started: str = ""
    """Why the ranks could not be started."""
    abandoned: tuple[int, ...] = ()
    """Pids that SIGKILL did not end."""
    first_failed: int | None = None
    """Rank that failed first: the others often only follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    outcome: str
    reason: str = ""
    hint: str = ""


def conclude(plan: Plan, run: Run, accounts: Sequence[Account], ending: Ending) -> ProbeResult:
    """The result, for every way in which a run can end. `accounts`: one a rank that was started."""
    measurements = measure(plan, accounts)
    verdict = _judge(plan, accounts, ending)
    checked = [sized.wrong for account in accounts for sized in account.sizes.values()]
    return ProbeResult(
        id=run.id,
        probe=plan.probe.name,
        outcome=verdict.outcome,
        reason=verdict.reason,
        hint=verdict.hint,
        trigger=run.trigger,
        started=run.started,
        duration_seconds=ending.duration,
        backend=plan.setting.backend,
        algorithm=plan.algorithm,
        ranks=0 if verdict.outcome == "skipped" else plan.ranks,
        versions=next((account.versions for account in accounts if account.versions), {}),
        measurements=measurements,
        wrong_elements=sum(checked) if checked else None,
        log="" if verdict.outcome in ("ok", "skipped") else _log(accounts),
        simulated=plan.simulated,
    )


def skipped(probe: Probe, run: Run, skip: Skip, *, simulated: bool = False) -> ProbeResult:
    """The result of a run that a guard did not let happen."""
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


def measure(plan: Plan, accounts: Sequence[Account]) -> tuple[Measurement, ...]:
    """Every size that all ranks have measured."""
    complete = len(accounts) == plan.ranks
    sizes = [size for size in plan.setting.sizes if complete and all(size in one.sizes for one in accounts)]
    return tuple(_measurement(plan, size, accounts) for size in sizes)


def percentile(values: Sequence[float], share: float) -> float:
    """Between the two nearest values, in proportion."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _measurement(plan: Plan, size: int, accounts: Sequence[Account]) -> Measurement:
    ranks = [account.sizes[size] for account in accounts]
    slowest = [max(together) for together in zip(*(rank.seconds for rank in ranks), strict=False)]
    latency = {name: percentile(slowest, share) for name, share in PERCENTILES.items()}
    algbw = size / latency["p50"]
    return Measurement(
        bytes=size,
        iterations=len(slowest),
        algbw_bytes_per_second=algbw,
        busbw_bytes_per_second=algbw * plan.probe.bus_factor(plan.ranks),
        latency_seconds=latency,
        wrong_elements=sum(rank.wrong for rank in ranks),
    )


def _wrong(_plan: Plan, accounts: Sequence[Account], _ending: Ending) -> _Verdict | None:
    ranks = [str(account.rank) for account in accounts if any(sized.wrong for sized in account.sizes.values())]
    if not ranks:
        return None
    seen = f"Silent data corruption, seen on rank {', '.join(ranks)}."
    return _Verdict(outcome="wrong", hint=f"{seen} Take the node out of service and run again.")


def _unkillable(_plan: Plan, _accounts: Sequence[Account], ending: Ending) -> _Verdict | None:
    if not ending.abandoned:
        return None
    pids = ", ".join(map(str, ending.abandoned))
    hint = f"SIGKILL does not end pid {pids}: it is stuck in the kernel, most likely in the driver. Reboot the node."
    return _Verdict(outcome="timeout", reason="unkillable", hint=hint)


def _aborted(_plan: Plan, _accounts: Sequence[Account], ending: Ending) -> _Verdict | None:
    if ending.aborted is None:
        return None
    return _Verdict(outcome="skipped", reason=ending.aborted.reason, hint=ending.aborted.hint)


def _not_started(plan: Plan, _accounts: Sequence[Account], ending: Ending) -> _Verdict | None:
    if not ending.not_started:
        return None
    hint = f"The ranks could not be started: {ending.not_started}. probe.python is {plan.python}."
    return _Verdict(outcome="failed", reason="setup", hint=hint)


def _no_torch(plan: Plan, accounts: Sequence[Account], _ending: Ending) -> _Verdict | None:
    if not any(account.absent for account in accounts):
        return None
    hint = (
        f"{plan.python} has no PyTorch. Install it with `{plan.python} -m pip install torch`, "
        "or let probe.python name an interpreter that has it."
    )
    return _Verdict(outcome="skipped", reason="no_torch", hint=hint)


def _complete(_plan: Plan, accounts: Sequence[Account], _ending: Ending) -> _Verdict | None:
    return _Verdict(outcome="ok") if all(account.done and account.status == 0 for account in accounts) else None


def _late(plan: Plan, accounts: Sequence[Account], ending: Ending) -> _Verdict | None:
    if not ending.timed_out:
        return None
    behind = min(accounts, key=lambda account: (account.done, account.progress.ratio)).progress
    places = "; ".join(f"rank {account.rank}: {account.progress}" for account in accounts)
    return _Verdict(outcome="timeout", reason=behind.stage, hint=f"Not done after {plan.deadline:g} s ({places}).")


def _failed(plan: Plan, accounts: Sequence[Account], ending: Ending) -> _Verdict:
    cause = next((one for one in accounts if one.rank == ending.first_failed), accounts[0])
    device = f" ({plan.gpus[cause.rank]})" if plan.gpus else ""
    hint = f"Rank {cause.rank}{device} at {cause.progress}: {cause.error or _exit(cause.status)}."
    if cause.progress.stage == "import":
        hint += f" Try `{plan.python} -I -c 'import torch'`."
    return _Verdict(outcome="failed", reason="setup" if cause.progress.stage in SETUP_STAGES else "ranks", hint=hint)


_JUDGES = (_wrong, _unkillable, _aborted, _not_started, _no_torch, _complete, _late)
"""In this order: what nothing else may hide first. Where none of them knows, the run has failed."""


def _judge(plan: Plan, accounts: Sequence[Account], ending: Ending) -> _Verdict:
    verdicts = (judge(plan, accounts, ending) for judge in _JUDGES)
    return next(filter(None, verdicts), None) or _failed(plan, accounts, ending)


def _exit(status: int | None) -> str:
    if status == -signal.SIGKILL:
        return "it was killed (SIGKILL), by the kernel if memory ran out: see the kernel log"
    if status is not None and status < 0:
        return f"it ended by signal {-status} ({signal.strsignal(-status)})"
    return f"it ended with status {status} and without a result"


def _log(accounts: Sequence[Account]) -> str:
    share = LOG_LIMIT // max(1, len(accounts))
    parts = ((account.rank, _printable(account.output).strip()) for account in accounts)
    return "\n".join(f"rank {rank}:\n{text[-share:]}" for rank, text in parts if text)


def _printable(output: bytes) -> str:
    """Without what could steer the terminal that shows it."""
    return "".join(one for one in output.decode(errors="replace") if one.isprintable() or one in "\n\t")
