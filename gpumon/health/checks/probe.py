"""CHECKS: results of the all-reduce, on the GPU that a run blames, else on the node; and whether there are results."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from gpumon.health.check import DAY, MINUTE, Check, Latch, Where, same
from gpumon.health.facts import Facts, GpuCase
from gpumon.health.free_node import is_free
from gpumon.health.policy import COUNT, Limit
from gpumon.health.repairs_since_run import RepairSinceRun, repairs_since_run
from gpumon.health.verdict import (
    FAIL,
    NODE,
    OFF,
    PASSED,
    WARN,
    Action,
    Finding,
    Verdict,
    VerdictTransition,
    fail,
    recovered,
    unknown,
    warn,
)
from gpumon.probe.core.frames import SETUP_STAGES
from gpumon.probe.core.preflight import REFUSED
from gpumon.probe.core.probes import ALL_REDUCE
from gpumon.probe.core.result import DECISIVE, ProbeResult

FAILURES = Limit("allreduce_failures", 2, "Failed or timed out all-reduce runs in a row that are a verdict.", COUNT)
PERIODS = 2
"""Intervals of the schedule within which a run must have ended."""
_USUAL = {
    "baseline": "this host's own median",
    "drift": "reached by this host in runs up to {date}; it has fallen slowly since",
    "expected": "the published figure for this hardware",
}
_LASTING = frozenset(
    {
        *("no_scheduler_gate", "scheduler_gate_failed", "held", "released", "maintenance", "disabled"),
        *("single_gpu", "mig", "exclusive_mode", "no_torch"),
    }
)
"""Reasons of skips that last until someone changes the configuration, the hardware or a time window."""


def _ran(facts: Facts) -> tuple[ProbeResult, ...]:
    """Return runs of the all-reduce, newest last."""
    return tuple(one for one in facts.probe.ran if one.probe == ALL_REDUCE)


def _measured(facts: Facts) -> ProbeResult | None:
    """Return the last run that measured everything."""
    return next((one for one in reversed(_ran(facts)) if one.outcome in DECISIVE), None)


def _blamed(result: ProbeResult) -> str | None:
    """Return the GPU to which the fault was traced, if it is only one."""
    found = () if result.location is None else result.location.gpus
    return found[0] if len(found) == 1 else None


def _of_node(facts: Facts, check: str, outcome: str) -> ProbeResult | Finding | None:
    """Return the last complete run if it has this outcome and blames no single GPU, else the finding without it."""
    last = _measured(facts)
    if last is None or _is_to_be_proved(last, facts.wall(0.0), facts):
        return None
    if last.ended <= facts.cleared.get((check, NODE), 0.0):
        return PASSED
    if last.outcome == outcome and _blamed(last) not in {state.uuid for state in facts.gpus}:
        return last
    return PASSED if last.outcome == outcome or last.is_whole else None


def _of_gpu(gpu: GpuCase, check: str, outcome: str) -> ProbeResult | Finding | None:
    """Return the last complete run if it has this outcome and blames this GPU, else the finding without it."""
    last = _measured(gpu.facts)
    if last is None or gpu.device not in last.conditions.gpus:
        return None
    if _is_to_be_proved(last, gpu.facts.wall(gpu.state.reset_at or 0.0), gpu.facts):
        return None
    blamed = last.outcome == outcome and _blamed(last) == gpu.device
    return last if blamed and last.ended > (gpu.cleared(check) or 0.0) else PASSED


def _is_to_be_proved(last: ProbeResult, repaired: float, facts: Facts) -> bool:
    """Return whether the run is older than the last repair, and the next run will prove the repair."""
    return last.ended < repaired and facts.probe.next_run is not None and not _is_put_off(facts)


def _slow(last: ProbeResult, whose: str) -> Finding:
    low = [one for one in last.comparisons if one.low]
    if not low:
        return warn(f"{whose} is slow: {last.reason or 'no figure to compare with'}.", Action.INSPECT, at=last.ended)
    one = [each for each in low if each.algorithm == low[0].algorithm][-1]  # of the first pass, as in the result
    usual = one.usual or one.busbw
    beside = _USUAL[one.low].format(date=one.best_date)
    where = f" {last.location.sentence}" if last.location is not None else ""
    reason = (
        f"{whose} ({one.algorithm}) measured {one.busbw / 1e9:.0f} GB/s twice: {one.busbw / usual:.0%} of "
        f"{usual / 1e9:.0f} GB/s, {beside}.{where}"
    )
    return warn(
        reason,
        Action.INSPECT,
        at=last.ended,
        busbw_bytes_per_second=one.busbw,
        usual_bytes_per_second=usual,
        busbw_ratio=one.busbw / usual,
        low=one.low,
    )


def slow(facts: Facts) -> Finding | None:
    """Return a warning if the last run was degraded. The next run that is not degraded clears it."""
    found = _of_node(facts, "allreduce_slow", "degraded")
    if isinstance(found, ProbeResult):
        return _slow(found, "The all-reduce")
    return found and recovered()


def gpu_slow(gpu: GpuCase) -> Finding | None:
    found = _of_gpu(gpu, "gpu_allreduce_slow", "degraded")
    if isinstance(found, ProbeResult):
        return _slow(found, "This GPU slows the all-reduce. It")
    return found and recovered()


def explained(_verdict: Verdict, _cause: Verdict, together: bool) -> bool:  # noqa: FBT001 - see Check.inhibited_if
    """Return whether the cause explains the slow run: it was found at the same time."""
    return together


def wrong(facts: Facts) -> Finding | None:
    found = _of_node(facts, "allreduce_wrong", "wrong")
    if not isinstance(found, ProbeResult):
        return found
    where = f" {found.location.sentence}" if found.location is not None else ""
    reason = f"The all-reduce computed wrong sums without an error: silent data corruption.{where}"
    return fail(reason, Action.INSPECT, at=found.ended, wrong_elements=float(found.wrong_elements or 0))


def gpu_wrong(gpu: GpuCase) -> Finding | None:
    found = _of_gpu(gpu, "gpu_allreduce_wrong", "wrong")
    if not isinstance(found, ProbeResult):
        return found
    reason = "This GPU sent wrong data in the all-reduce without an error: silent data corruption."
    return fail(reason, Action.REPLACE, at=found.ended, wrong_elements=float(found.wrong_elements or 0))


def failing(facts: Facts) -> Finding | None:
    """Return a failure after several failed runs in a row, because a single failure may be transient."""
    most = facts.limit(FAILURES)
    ran = _ran(facts)
    if most is None:
        return OFF
    if not ran:
        return None
    newest = ran[-1]
    if newest.outcome in DECISIVE:
        return PASSED
    since = facts.cleared.get(("allreduce_failing", NODE), 0.0)
    count = sum(1 for _ in takewhile(lambda one: _is_failure(one, since), reversed(ran)))
    if count < most:
        return None
    setup = newest.reason in {"setup", *SETUP_STAGES}
    where = "before its first operation" if setup else "in an operation"
    what = "timed out" if newest.outcome == "timeout" else "failed"
    reason = f"The all-reduce failed {count} times in a row; the last run {what} {where}."
    if setup or newest.backend != "nccl":
        return warn(reason, Action.INSPECT, failures=float(count), stage=newest.reason)
    return fail(reason, Action.INSPECT, failures=float(count), stage=newest.reason)


def _is_failure(result: ProbeResult, since: float) -> bool:
    failed = result.outcome in {"failed", "timeout"} and result.reason != "unkillable"
    return failed and result.ended > since


def unkillable(facts: Facts) -> Finding:
    """Return a failure if SIGKILL does not end a rank.

    It needs a reboot: the next process on that GPU hangs as well.
    """
    pids = facts.probe.unkillable
    if not pids:
        return PASSED
    words = f"{len(pids)} processes of the all-reduce" if len(pids) > 1 else "one process of the all-reduce"
    reason = f"SIGKILL does not end {words}: blocked in the kernel. The last run shows the stage."
    return fail(reason, Action.REBOOT, processes=float(len(pids)))


def stale(facts: Facts) -> Finding | None:
    """Return unknown if no run has ended for long although the node was free.

    A skip is not a run. On a free node it gives the reason.
    """
    if facts.probe.next_run is None or _is_decided(facts) or not is_free(facts):
        return PASSED
    if facts.probe.running is not None:
        return None
    since = facts.now.uptime if facts.probe.free_since is None else facts.probe.free_since
    silent = facts.now.uptime - max(facts.probe.last_ended_at, since)
    if silent > PERIODS * facts.probe_interval:
        reason = f"No all-reduce has run for {silent / 3600:.0f} h, although the node was free."
        return unknown(f"{reason}{_last_skip(facts)}", Action.INSPECT, silent_seconds=silent)
    repaired = next(_repaired(facts), None)
    if repaired is not None:
        return unknown(f"No all-reduce has run since {repaired.words}: `gpumon probe allreduce` runs one.", Action.NONE)
    return PASSED


def _is_put_off(facts: Facts) -> bool:
    last = facts.probe.last
    return last is not None and last.outcome == "skipped" and last.reason in _LASTING


def _is_decided(facts: Facts) -> bool:
    """Return whether an operator or the scheduler prevents runs by other means than holds, releases and maintenance.

    A failed gate command prevents runs by mistake, so it does not count.
    """
    last = facts.probe.last
    if last is None or last.outcome != "skipped":
        return False
    if last.reason == "no_scheduler_gate":
        return not facts.probe_gated
    passing = {"scheduler_gate_failed", "held", "released", "maintenance"}
    return last.reason in _LASTING - passing or last.hint.startswith(REFUSED)


def _last_skip(facts: Facts) -> str:
    last = facts.probe.last
    if last is None or last.outcome != "skipped":
        return ""
    return f" The last run was skipped ({last.reason}). {last.hint}".rstrip()


def _repaired(facts: Facts) -> Iterator[RepairSinceRun]:
    """Yield the repairs of GPUs since the last complete run that used them."""
    measured = [one for one in _ran(facts) if one.outcome in DECISIVE]

    def since(one: VerdictTransition) -> float:
        return facts.now.wall - facts.age(one)

    yield from repairs_since_run(measured, facts.gpus, facts.transitions, wall=facts.wall, since=since)


_ANY: tuple[str, ...] = (
    *("gpu_lost", "gpu_missing", "gpu_reset_required", "gpu_init_failed", "gpu_stuck", "gpu_unreadable"),
    *("fabric_manager_down", "fabric_unhealthy", "nvlink_down", "nvlink_recovery_failed", "gpu_xid_critical"),
)
"""Faults that explain any result, in the order of the table."""
_LINKS: tuple[str, ...] = ("nvlink_unstable", "nvlink_crc_high", "nvlink_ber_high", "nvlink_errors", "nvlink_slow")
"""Faults that slow a link, and the GPU at its other end."""
_SLOWING: tuple[str, ...] = (
    *(
        "pcie_width_degraded",
        "pcie_generation_degraded",
        "gpu_hw_slowdown",
        "gpu_clock_straggler",
        "gpu_thermal_margin_low",
    ),
    *("gpu_memory_temperature_high", "gpu_power_brake", "gpu_power_cap_low"),
)
"""Faults that slow one GPU and thereby all; the run then names that GPU."""


def _after(*names: str) -> dict[str, Where]:
    return dict.fromkeys(names, "any")


CAUSES_OF_SLOW_RUNS = _after(*_ANY, *_LINKS, *_SLOWING)


_LOOK_FIRST = """\
1. Fix other faults of the node first: a link that is down, throttled clocks, PCIe below its width. Then run
   `gpumon probe allreduce` while the node is free.
"""

CHECKS: tuple[Check, ...] = (
    Check(
        name="allreduce_unkillable",
        help="A process of the all-reduce is blocked in the kernel, and SIGKILL does not end it.",
        steps="""\
1. Drain the node: every process that opens that GPU hangs too. The result of the run names the stage
   (`gpumon probe history --json`).
2. Reboot the node; if the reboot hangs, power-cycle it.
3. Check for Xids at that time. If it happens again, report it to NVIDIA.
""",
        node=unkillable,
        after=MINUTE,
        latch=Latch(),
        inhibited_by={"gpu_driver_down": "node", "gpu_lost": "any", "gpu_stuck": "any"},
    ),
    Check(
        name="gpu_allreduce_wrong",
        help="The GPU sends wrong data in the all-reduce (silent data corruption).",
        steps="""\
1. Drain the node at once. Do not trust what it has computed since the last run that was ok.
2. Run `gpumon probe allreduce` on the free node. If it names the same GPU again, replace it.
3. If it names another GPU, or none: reset the GPUs, reboot, and test NVSwitches and memory.
""",
        gpu=gpu_wrong,
        latch=Latch(quiet=7 * DAY),
    ),
    Check(
        name="allreduce_wrong",
        help="The all-reduce computes wrong sums (silent data corruption).",
        steps="""\
1. Drain the node at once. Do not trust what it has computed since the last run that was ok.
2. Run `gpumon probe allreduce` on the free node. It names the GPU that sends wrong data if it can locate it.
3. Reset the GPUs and reboot. If it happens again, have GPUs, NVSwitches and host memory tested.
4. After the repair: `gpumon ack allreduce_wrong --note "..."`.
""",
        node=wrong,
        latch=Latch(quiet=7 * DAY),
    ),
    Check(
        name="allreduce_failing",
        levels=(FAIL, WARN),
        help="The all-reduce fails repeatedly.",
        steps="""\
1. Run `gpumon probe allreduce`: it prints the error, with the last lines of NCCL's log.
2. A failure before the first operation is about the installation: check `probe.python`, PyTorch, driver and CUDA
   versions, and /dev/shm.
3. A failure in an operation is about the hardware or the fabric: check for Xids, links that are down, and the fabric
   manager.
""",
        node=failing,
        limits=(FAILURES,),
        inhibited_by={"gpu_driver_down": "node", "allreduce_unkillable": "node", **_after(*_ANY)},
    ),
    Check(
        name="gpu_allreduce_slow",
        levels=(WARN,),
        help="The GPU slows the node's all-reduce.",
        steps=f"""\
{_LOOK_FIRST}2. If its links, clocks and PCIe are ok: reset the GPU and run the probe again.
3. The next run that is ok clears the verdict. If the GPU is named again, have its seat, bridge and baseboard inspected.
4. If this bandwidth is intended: `gpumon ack gpu_allreduce_slow --note "..."` starts a new median.
""",
        gpu=gpu_slow,
        latch=Latch(quiet=7 * DAY),
        acceptable=True,
        inhibited_by=_after(*_ANY, *_LINKS) | same(*_SLOWING),
        inhibited_if=explained,
    ),
    Check(
        name="allreduce_slow",
        levels=(WARN,),
        help="The all-reduce is slower than it should be, and no single GPU is to blame.",
        steps=f"""\
{_LOOK_FIRST}2. If only `default` is slow and `ring` is not, NVLink SHARP is not in use: check the fabric manager and
   /etc/nccl.conf.
3. If this bandwidth is intended: a new driver, NCCL or setting starts a new median by itself; after any other change,
   `gpumon ack allreduce_slow --note "..."` starts it. `probe.min_expected_ratio` is the limit for published figures.
4. If it fell slowly (drift): check what has changed since the date in the verdict, such as dust, heat, clocks and power
   limits.
5. The next run that is ok clears the verdict.
""",
        node=slow,
        latch=Latch(quiet=7 * DAY),
        acceptable=True,
        inhibited_by=CAUSES_OF_SLOW_RUNS,
        inhibited_if=explained,
    ),
    Check(
        name="allreduce_stale",
        levels=(),
        help="No all-reduce has run for a long time, or since a repair.",
        steps="""\
1. Run `gpumon probe allreduce`: it runs one, or prints the reason why it cannot.
""",
        node=stale,
        after=30 * MINUTE,
        clear_after=0.0,
    ),
)
