"""CHECKS: what the all-reduce says of the GPU that it blames, else of the node; and whether it says anything."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from gpumon.health.check import DAY, MINUTE, Check, Latch, Where, same
from gpumon.health.facts import Facts, GpuCase
from gpumon.health.free import is_free
from gpumon.health.mended import Mended, mended
from gpumon.health.policy import COUNT, Limit
from gpumon.health.terms import FAIL, WARN, Action
from gpumon.health.verdict import NODE, OFF, WELL, Finding, Verdict, VerdictTransition, fail, over, unknown, warn
from gpumon.probe.core.frames import SETUP_STAGES
from gpumon.probe.core.preflight import REFUSED
from gpumon.probe.core.probes import ALL_REDUCE
from gpumon.probe.core.result import DECISIVE, ProbeResult

FAILURES = Limit(
    "allreduce_failures", 2, "Runs of the all-reduce in a row that end without a result and are a verdict.", COUNT
)
PERIODS = 2
"""Intervals of the schedule in which something should have come of it."""
_USUAL = {
    "baseline": "what this host came to before",
    "drift": "what this host came to in the runs up to {date}, from which it went down slowly",
    "expected": "what such hosts come to",
}
_LASTING = frozenset({"unarmed", "held", "disabled", "maintenance", "single_gpu", "mig", "exclusive_mode", "no_torch"})
"""Reasons of skips behind which there is somebody's decision: until it is taken back, none will run."""


def _ran(facts: Facts) -> tuple[ProbeResult, ...]:
    """Runs of the all-reduce, the newest last."""
    return tuple(one for one in facts.probe.ran if one.probe == ALL_REDUCE)


def _measured(facts: Facts) -> ProbeResult | None:
    """The last run that has."""
    return next((one for one in reversed(_ran(facts)) if one.outcome in DECISIVE), None)


def _blamed(result: ProbeResult) -> str | None:
    """The one GPU to which the trouble was traced."""
    found = () if result.location is None else result.location.gpus
    return found[0] if len(found) == 1 else None


def _of_node(facts: Facts, check: str, outcome: str) -> ProbeResult | Finding | None:
    """The run that ended so and blames no single GPU, else what is to be said."""
    last = _measured(facts)
    if last is None or _is_to_be_proved(last, facts.wall(0.0), facts):
        return None
    if last.ended <= facts.cleared.get((check, NODE), 0.0):
        return WELL
    if last.outcome == outcome and _blamed(last) not in {state.uuid for state in facts.gpus}:
        return last
    return WELL if last.outcome == outcome or last.is_whole else None


def _of_gpu(gpu: GpuCase, check: str, outcome: str) -> ProbeResult | Finding | None:
    """The run that ended so and blames this GPU."""
    last = _measured(gpu.facts)
    if last is None or gpu.device not in last.conditions.gpus:
        return None
    if _is_to_be_proved(last, gpu.facts.wall(gpu.state.reset_at or 0.0), gpu.facts):
        return None
    blamed = last.outcome == outcome and _blamed(last) == gpu.device
    return last if blamed and last.ended > (gpu.cleared(check) or 0.0) else WELL


def _is_to_be_proved(last: ProbeResult, repaired: float, facts: Facts) -> bool:
    """Whether it is of before the last reset or boot, and another is to tell; if none is, that is all the proof."""
    return last.ended < repaired and facts.probe.next_run is not None and not _is_put_off(facts)


def _slow(last: ProbeResult, whose: str) -> Finding:
    low = [one for one in last.comparisons if one.low]
    if not low:
        return warn(f"{whose} is slow: {last.reason or 'nobody says beside what'}.", Action.INSPECT, at=last.ended)
    one = [each for each in low if each.algorithm == low[0].algorithm][-1]  # of the first pass, as the result says it
    usual = one.usual or one.busbw
    beside = _USUAL[one.low].format(date=one.best_date)
    where = f" {last.location.sentence}" if last.location is not None else ""
    reason = (
        f"{whose} ({one.algorithm}) came to {one.busbw / 1e9:.0f} GB/s, twice: {one.busbw / usual:.0%} of "
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
    """Over with a run that is not."""
    found = _of_node(facts, "allreduce_slow", "degraded")
    if isinstance(found, ProbeResult):
        return _slow(found, "The all-reduce")
    return found and over()


def gpu_slow(gpu: GpuCase) -> Finding | None:
    found = _of_gpu(gpu, "gpu_allreduce_slow", "degraded")
    if isinstance(found, ProbeResult):
        return _slow(found, "It holds the all-reduce back, which")
    return found and over()


def explained(_verdict: Verdict, _cause: Verdict, together: bool) -> bool:  # noqa: FBT001 - see Check.because
    """What slows a GPU or a link down is why the run was slow, whatever either asks for."""
    return together


def wrong(facts: Facts) -> Finding | None:
    found = _of_node(facts, "allreduce_wrong", "wrong")
    if not isinstance(found, ProbeResult):
        return found
    where = f" {found.location.sentence}" if found.location is not None else ""
    reason = f"Sums of the all-reduce were wrong, and nobody was told: silent data corruption.{where}"
    return fail(reason, Action.INSPECT, at=found.ended, wrong_elements=float(found.wrong_elements or 0))


def gpu_wrong(gpu: GpuCase) -> Finding | None:
    found = _of_gpu(gpu, "gpu_allreduce_wrong", "wrong")
    if not isinstance(found, ProbeResult):
        return found
    reason = "It sent wrong data in the all-reduce, and nobody was told: silent data corruption."
    return fail(reason, Action.REPLACE, at=found.ended, wrong_elements=float(found.wrong_elements or 0))


def failing(facts: Facts) -> Finding | None:
    """One failure may be of a moment. Before the first operation it is the installation; on a CPU no GPU is in it."""
    most = facts.limit(FAILURES)
    ran = _ran(facts)
    if most is None:
        return OFF
    if not ran:
        return None
    newest = ran[-1]
    if newest.outcome in DECISIVE:
        return WELL
    since = facts.cleared.get(("allreduce_failing", NODE), 0.0)
    count = sum(1 for _ in takewhile(lambda one: _is_failure(one, since), reversed(ran)))
    if count < most:
        return None
    setup = newest.reason in {"setup", *SETUP_STAGES}
    where = "before its first operation" if setup else "in an operation"
    what = "was not done in time" if newest.outcome == "timeout" else "failed"
    reason = f"The all-reduce has ended without a result {count} times in a row; the last one {what} {where}."
    if setup or newest.backend != "nccl":
        return warn(reason, Action.INSPECT, failures=float(count), stage=newest.reason)
    return fail(reason, Action.INSPECT, failures=float(count), stage=newest.reason)


def _is_failure(result: ProbeResult, since: float) -> bool:
    failed = result.outcome in {"failed", "timeout"} and result.reason != "unkillable"
    return failed and result.ended > since


def unkillable(facts: Facts) -> Finding:
    """Whoever comes to its GPU next hangs as well. Once it is so, only a reboot ends it."""
    pids = facts.probe.unkillable
    if not pids:
        return WELL
    words = f"{len(pids)} of its processes" if len(pids) > 1 else "one of its processes"
    reason = f"SIGKILL does not end {words}: it is stuck in the kernel. The last run says where."
    return fail(reason, Action.REBOOT, processes=float(len(pids)))


def stale(facts: Facts) -> Finding | None:
    """Nobody can tell how the links are, and all the time nobody has been in the way of a run.

    A skip is no run: on a free node it only says why there is none.
    """
    if facts.probe.next_run is None or _is_decided(facts) or not is_free(facts):
        return WELL
    if facts.probe.running is not None:
        return None
    since = facts.now.uptime if facts.probe.free_since is None else facts.probe.free_since
    silent = facts.now.uptime - max(facts.probe.told_at, since)
    if silent > PERIODS * facts.probe_interval:
        reason = f"Nothing has come of the all-reduce for {silent / 3600:.0f} h, though it is due again and again."
        return unknown(f"{reason}{_last_skip(facts)}", Action.INSPECT, silent_seconds=silent)
    repaired = next(_repaired(facts), None)
    if repaired is not None:
        return unknown(f"No all-reduce has run since {repaired.words}: `gpumon probe allreduce` runs one.", Action.NONE)
    return WELL


def _is_put_off(facts: Facts) -> bool:
    last = facts.probe.last
    return last is not None and last.outcome == "skipped" and last.reason in _LASTING


def _is_decided(facts: Facts) -> bool:
    """Whether a person or the scheduler keeps it from running; a hold and maintenance are seen as long as they last.

    A gate that does not answer is nobody's decision.
    """
    last = facts.probe.last
    if last is None or last.outcome != "skipped":
        return False
    if last.reason == "unarmed":
        return not facts.probe_gated
    return last.reason in _LASTING - {"held", "maintenance"} or last.hint.startswith(REFUSED)


def _last_skip(facts: Facts) -> str:
    last = facts.probe.last
    if last is None or last.outcome != "skipped":
        return ""
    return f" The last run was skipped ({last.reason}). {last.hint}".rstrip()


def _repaired(facts: Facts) -> Iterator[Mended]:
    """What has been done to GPUs since the last run that measured them."""
    measured = [one for one in _ran(facts) if one.outcome in DECISIVE]

    def since(one: VerdictTransition) -> float:
        return facts.now.wall - facts.age(one)

    yield from mended(measured, facts.gpus, facts.transitions, wall=facts.wall, since=since)


_ANY: tuple[str, ...] = (
    *("gpu_lost", "gpu_missing", "gpu_reset_required", "gpu_init_failed", "gpu_stuck", "gpu_unreadable"),
    *("fabric_manager_down", "fabric_unhealthy", "nvlink_down", "nvlink_recovery_failed", "gpu_xid_critical"),
)
"""Faults with which no all-reduce is what it was; in the order of the table."""
_LINKS: tuple[str, ...] = ("nvlink_unstable", "nvlink_crc_high", "nvlink_ber_high", "nvlink_errors", "nvlink_slow")
"""What slows a link, and whoever is at its other end."""
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
"""What slows one GPU, and with it all of them; but it is that GPU that the run then names."""


def _after(*names: str) -> dict[str, Where]:
    return dict.fromkeys(names, "any")


CAUSES_OF_SLOW_RUNS = _after(*_ANY, *_LINKS, *_SLOWING)


_LOOK_FIRST = """\
1. `gpumon probe allreduce` runs it again while the node is free. Look first at what else is wrong with the node: a link
   that is down, clocks that are held back, PCIe below its width.
"""

CHECKS: tuple[Check, ...] = (
    Check(
        name="allreduce_unkillable",
        help="A process of the all-reduce sits in the kernel, and SIGKILL does not end it.",
        steps="""\
1. Drain the node: whoever opens that GPU will hang too. The log of the run names the stage
   (`gpumon probe allreduce --json`).
2. Reboot it; where the reboot hangs, power-cycle it.
3. Look for Xids of that time, and report a driver that does it again.
""",
        node=unkillable,
        after=MINUTE,
        latch=Latch(),
        follows={"gpu_driver_down": "node", "gpu_lost": "any", "gpu_stuck": "any"},
    ),
    Check(
        name="gpu_allreduce_wrong",
        help="The GPU sends wrong data in the all-reduce: silent corruption.",
        steps="""\
1. Drain the node at once, and doubt what was computed there since the last run that was well.
2. `gpumon probe allreduce` on the free node: is the same GPU named again? Then replace it.
3. Another one, or none: reset the GPUs, reboot, and look at NVSwitches and memory.
""",
        gpu=gpu_wrong,
        latch=Latch(quiet=7 * DAY),
    ),
    Check(
        name="allreduce_wrong",
        help="Sums of the all-reduce are wrong: silent corruption.",
        steps="""\
1. Drain the node at once, and doubt what was computed there since the last run that was well.
2. `gpumon probe allreduce` on the free node tells which GPU the wrong data comes from, if it can be told.
3. Reset the GPUs and reboot; if it comes again, have GPUs, NVSwitches and host memory tested.
4. When it is mended: `gpumon ack allreduce_wrong --note "..."`.
""",
        node=wrong,
        latch=Latch(quiet=7 * DAY),
    ),
    Check(
        name="allreduce_failing",
        levels=(FAIL, WARN),
        help="The all-reduce fails again and again.",
        steps="""\
1. `gpumon probe allreduce` runs it again and prints what went wrong, with the last lines of NCCL's log.
2. Before the first operation it is the installation: `probe.python`, PyTorch, driver and CUDA versions, /dev/shm.
3. In an operation it is the hardware or the fabric: look for Xids, links that are down, the fabric manager.
""",
        node=failing,
        limits=(FAILURES,),
        follows={"gpu_driver_down": "node", "allreduce_unkillable": "node", **_after(*_ANY)},
    ),
    Check(
        name="gpu_allreduce_slow",
        levels=(WARN,),
        help="The GPU holds the all-reduce of the node back.",
        steps=f"""\
{_LOOK_FIRST}2. Its links, clocks and PCIe are well: reset it, and let the probe run again.
3. The next run that is well ends it. It is named again: have its seat, bridge and baseboard inspected.
4. It is as it should be: `gpumon ack gpu_allreduce_slow --note "..."`, and the median begins anew.
""",
        gpu=gpu_slow,
        latch=Latch(quiet=7 * DAY),
        acceptable=True,
        follows=_after(*_ANY, *_LINKS) | same(*_SLOWING),
        because=explained,
    ),
    Check(
        name="allreduce_slow",
        levels=(WARN,),
        help="The all-reduce is slower than it should be, and no single GPU is to blame.",
        steps=f"""\
{_LOOK_FIRST}2. Only `default` is slow, and `ring` is not: NVLink SHARP is not in use. Look at the fabric manager and at
   /etc/nccl.conf.
3. After a change of driver, NCCL or settings it is meant to be so: `probe.min_expected_ratio` says what is asked for;
   a median of its own begins anew by itself. After any other, `gpumon ack allreduce_slow --note "..."` begins it anew.
4. It went down slowly: what has changed since the day that the verdict names? Dust and heat, clocks and power limits.
5. The next run that is well ends it.
""",
        node=slow,
        latch=Latch(quiet=7 * DAY),
        acceptable=True,
        follows=CAUSES_OF_SLOW_RUNS,
        because=explained,
    ),
    Check(
        name="allreduce_stale",
        levels=(),
        help="Nobody can tell how fast the all-reduce is: none has run for long, or since a repair.",
        steps="""\
1. `gpumon probe allreduce` runs one, or says what is in the way.
""",
        node=stale,
        after=30 * MINUTE,
        clear_after=0.0,
    ),
)
