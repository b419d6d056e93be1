"""CHECKS: runs of each probe that fail, hang or are missing."""

from __future__ import annotations

from functools import partial
from itertools import takewhile

from gpumon.health.check_row import MINUTE, Check, Latch, any_device
from gpumon.health.checks.probe import FAULTS_OF_ANY_RUN, LASTING_SKIPS, if_scheduled, runs_of
from gpumon.health.facts import Facts
from gpumon.health.policy import COUNT, Limit
from gpumon.health.run_conditions import is_free, repairs_since_run
from gpumon.health.verdict import FAIL, NODE, PASSED, WARN, Action, Finding, fail, unknown, warn
from gpumon.probe.core.frames import SETUP_STAGES
from gpumon.probe.core.preflight import REFUSED
from gpumon.probe.core.probes import PROBES, Probe
from gpumon.probe.core.result import DECISIVE

FAILURES = Limit(
    "probe_failures",
    2,
    "Minimum number of failed or timed out runs of a probe in a row that raises a verdict.",
    COUNT,
)
PERIODS = 2
"""Maximum time without a run on a free node, as a number of intervals between scheduled runs."""


def repeated_failures(facts: Facts, probe: Probe) -> Finding | None:
    """Return a finding after several failed runs in a row: a failure if NCCL failed in an operation, else a warning."""
    limit = facts.threshold(FAILURES)
    ran = runs_of(facts, probe)
    if not ran:
        return None
    newest = ran[-1]
    if newest.outcome in DECISIVE:
        return PASSED
    since = facts.cleared.get((f"{probe.name}_failing", NODE), 0.0)
    failed = (
        run.outcome in {"failed", "timeout"} and run.reason != "unkillable" and run.ended > since
        for run in reversed(ran)
    )
    count = sum(takewhile(bool, failed))
    if count < limit:
        return None
    setup = newest.reason in {"setup", *SETUP_STAGES}
    where = "before its first operation" if setup else "in an operation"
    what = "timed out" if newest.outcome == "timeout" else "failed"
    reason = f"The {probe.title} failed {count} times in a row; the last run {what} {where}."
    if setup or newest.backend != "nccl":
        return warn(reason, Action.FIX if setup else Action.INSPECT, failures=float(count), stage=newest.reason)
    return fail(reason, Action.INSPECT, failures=float(count), stage=newest.reason)


def unkillable_processes(facts: Facts) -> Finding:
    """Return a failure if SIGKILL does not end a rank (process) of a probe: the next process on its GPU hangs too."""
    pids = facts.probe.unkillable
    if not pids:
        return PASSED
    words = f"{len(pids)} processes of a probe" if len(pids) > 1 else "one process of a probe"
    reason = f"SIGKILL does not end {words}: blocked in the kernel. The last run shows the stage."
    return fail(reason, Action.REBOOT, processes=float(len(pids)))


def missing_runs(facts: Facts, probe: Probe) -> Finding | None:
    """Return unknown if no run has ended for PERIODS intervals on a free node, or since a GPU was repaired.

    Skipped runs do not count. Return None while a run is in progress.
    """
    interval = facts.probe_intervals.get(probe.name)
    if interval is None or probe.name not in facts.probe.next_runs or _is_decided(facts, probe) or not is_free(facts):
        return PASSED
    if facts.probe.running is not None:
        return None
    since = facts.now.uptime if facts.probe.free_since is None else facts.probe.free_since
    ended = facts.probe.ended_at.get(probe.name, facts.probe.began_at)
    silent = facts.now.uptime - max(ended, since)
    if silent > PERIODS * interval:
        reason = f"No {probe.title} has run for {silent / 3600:.0f} h, although the node was free."
        return unknown(f"{reason}{_last_skip(facts, probe)}", Action.FIX, silent_seconds=silent)
    complete = [run for run in runs_of(facts, probe) if run.outcome in DECISIVE]
    repaired = next(repairs_since_run(complete, facts.gpus, facts.transitions, facts.instant), None)
    if repaired is not None:
        words = f"No {probe.title} has run since {repaired.words}: `gpumon probe {probe.name}` runs one."
        return unknown(words, Action.NONE)
    return PASSED


def _is_decided(facts: Facts, probe: Probe) -> bool:
    """Return whether the last run was skipped because configuration, hardware or the scheduler prevents runs.

    A failure of the gate command, which asks the scheduler, is no decision.
    """
    last = facts.probe.last(probe.name)
    if last is None or last.outcome != "skipped":
        return False
    if last.reason == "no_scheduler_gate":
        return not facts.probe_gated
    passing = {"scheduler_gate_failed", "held", "released", "maintenance"}
    return last.reason in LASTING_SKIPS - passing or last.hint.startswith(REFUSED)


def _last_skip(facts: Facts, probe: Probe) -> str:
    last = facts.probe.last(probe.name)
    if last is None or last.outcome != "skipped":
        return ""
    return f" The last run was skipped ({last.reason}). {last.hint}".rstrip()


def _checks(probe: Probe) -> tuple[Check, ...]:
    name, title = probe.name, probe.title
    return (
        Check(
            name=f"{name}_failing",
            levels=(FAIL, WARN),
            help=f"The {title} fails repeatedly.",
            steps=f"""\
1. Run `gpumon probe {name}`: it prints the error, with the last lines of NCCL's log.
2. If it fails before the first operation, check the installation: `probe.python`, PyTorch, driver, CUDA, /dev/shm.
3. If it fails in an operation, check the hardware: Xids, links that are down, the fabric manager.
""",
            node=partial(repeated_failures, probe=probe),
            limits=(FAILURES,),
            inhibited_by={"gpu_driver_down": "node", UNKILLABLE.name: "node", **any_device(*FAULTS_OF_ANY_RUN)},
        ),
        Check(
            name=f"{name}_stale",
            levels=(),
            help=f"No {title} has run for a long time, or since a repair.",
            steps=f"""\
1. Run `gpumon probe {name}`: it runs one, or prints the reason why it cannot.
""",
            node=partial(missing_runs, probe=probe),
            after=30 * MINUTE,
            clear_after=0.0,
        ),
    )


UNKILLABLE = Check(
    name="allreduce_unkillable",
    help="A process of a probe is blocked in the kernel, and SIGKILL does not end it.",
    steps="""\
1. Drain the node: every process that opens that GPU hangs too. `gpumon probe history --json` names the stage.
2. Reboot the node; if the reboot hangs, power-cycle it.
3. Check for Xids at that time. If it happens again, report it to NVIDIA.
""",
    node=unkillable_processes,
    after=MINUTE,
    latch=Latch(),
    inhibited_by={"gpu_driver_down": "node", "gpu_lost": "any", "gpu_stuck": "any"},
)
"""The check for processes of any probe."""
CHECKS: tuple[Check, ...] = (
    UNKILLABLE,
    *(check for probe in PROBES.values() for check in if_scheduled(probe, _checks(probe))),
)
