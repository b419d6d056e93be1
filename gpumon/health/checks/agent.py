"""CHECKS: the agent itself: what it cannot see, and what it cannot keep. None of them makes the node unfit for work."""

from __future__ import annotations

from collections.abc import Callable

from gpumon.health.check import HOUR, MINUTE, Check, Latch
from gpumon.health.facts import Facts
from gpumon.health.policy import COUNT, SHARE, Limit
from gpumon.health.sample_windows import SampleWindow
from gpumon.health.verdict import HISTORY_UNREAD, NODE, OFF, PASSED, WARN, Action, Finding, unknown, warn
from gpumon.model.error_event import OVERRUN

ERRORS = SampleWindow("gpumon_poll_errors_total", 5 * MINUTE)
RESTARTS = SampleWindow("gpumon_sampler_restarts_total", 10 * MINUTE)
SLOW_SHARE = Limit("poll_duration_ratio", 0.5, "Share of the poll interval that a fast poll may take.", SHARE)
MOST_RESTARTS = Limit("sampler_restarts", 3, "Replacements of the sampler in ten minutes that are a verdict.", COUNT)
_BY_FAULTS = frozenset({"crash", "deadline"})
"""Reasons why a sampler is replaced that nobody asked for."""


def _noticed(subject: str, reason: str) -> Callable[[Facts], Finding]:
    """The agent has said so in its notices."""

    def judge(facts: Facts) -> Finding:
        words = facts.notices.get(subject)
        return warn(f"{reason} {words.rstrip('.')}.", Action.INSPECT) if words else PASSED

    return judge


def past_unread(facts: Facts) -> Finding | None:
    if facts.recalled:
        return PASSED
    words = facts.notices.get("store", "it does not answer").rstrip(".")
    return unknown(f"What was wrong before the agent started is not known, as its store cannot be read: {words}.")


def store_down(facts: Facts) -> Finding | None:
    """Where the past is not known either, that is said, which is worse."""
    if facts.node.store_up is None or not facts.recalled:
        return None
    words = facts.notices.get("store", "see the log")
    lost = "Events and verdicts are kept in memory only: "
    return PASSED if facts.node.store_up else warn(f"{lost}{words.rstrip('.')}.", Action.INSPECT)


def kernel_log_down(facts: Facts) -> Finding | None:
    """Who may not read it is told so by gpumon_collector_denied: that is a setting and no fault."""
    if facts.node.kernel_log_up is None or (facts.node.collector_denied or {}).get("kernel_log"):
        return None
    reason = "The kernel log cannot be read: Xids of GPUs that do not answer, and SXids, are not seen."
    return PASSED if facts.node.kernel_log_up else warn(reason, Action.INSPECT)


def kernel_log_lost(facts: Facts) -> Finding:
    cleared = facts.cleared.get(("gpumon_kernel_log_lost", NODE), 0.0)
    lost = [one for one in facts.events if one.kind == OVERRUN and not one.historical and one.last_wall > cleared]
    if not lost:
        return PASSED
    reason = "The kernel log was overwritten before it was read: Xids may be missing."
    return warn(reason, Action.INSPECT, at=lost[-1].last_wall, times=float(sum(one.count for one in lost)))


def poll_errors(facts: Facts) -> Finding | None:
    if facts.node.poll_errors_total is None:
        return None
    gained: dict[str, float] = {}
    for one in facts.series(ERRORS):
        if one.gain > 0:
            gained[one.labels["error"]] = gained.get(one.labels["error"], 0.0) + one.gain
    if not gained:
        return PASSED
    worst = max(gained, key=lambda error: gained[error])
    count = sum(gained.values())
    reason = f"{count:.0f} driver calls failed in five minutes, mostly {worst}: some readings are missing."
    return warn(reason, Action.INSPECT, poll_errors=count)


def poll_slow(facts: Facts) -> Finding | None:
    share, took = facts.limit(SLOW_SHARE), (facts.node.poll_duration_seconds or {}).get("fast")
    if share is None:
        return OFF
    if took is None or not facts.node.nvml_up:
        return None
    if took <= share * facts.interval:
        return PASSED
    reason = f"A fast poll takes {took:.2f} s of an interval of {facts.interval:g} s: the driver answers slowly."
    return warn(reason, Action.INSPECT, poll_duration_seconds=took)


def sampler_restarting(facts: Facts) -> Finding | None:
    most = facts.limit(MOST_RESTARTS)
    if most is None:
        return OFF
    times = sum(one.gain for one in facts.series(RESTARTS) if one.labels.get("reason") in _BY_FAULTS)
    if times < most:
        return PASSED
    reason = f"The process that reads the GPUs had to be replaced {times:.0f} times in ten minutes."
    return warn(reason, Action.INSPECT, sampler_restarts=times)


def children_abandoned(facts: Facts) -> Finding | None:
    count = facts.node.abandoned_children
    if count is None:
        return None
    reason = f"{count:.0f} of the agent's processes cannot be ended: they sit in the driver until the node is rebooted."
    return warn(reason, Action.REBOOT, abandoned_children=count) if count else PASSED


def check_failing(facts: Facts) -> Finding:
    """As the look before found it."""
    if not facts.broken:
        return PASSED
    (check, device), error = min(facts.broken.items())
    index = {state.uuid: state.index for state in facts.gpus}.get(device)
    where = f" of GPU {index}" if index is not None else f" of {device}" if device else ""
    more = f" (and {len(facts.broken) - 1} more)" if len(facts.broken) > 1 else ""
    reason = f"The check {check}{where}{more} fails: {error}. What it found before stays as it is: report it."
    return warn(reason, Action.INSPECT, failing_check=check, failing=float(len(facts.broken)))


CHECKS = (
    Check(
        name=HISTORY_UNREAD,
        levels=(),
        help="The agent does not know what was wrong before it started: nobody may take this node for well.",
        steps="""\
1. The reason names the file and what is wrong: mend it, or give the agent another place (`--store.path`). It reads the
   store by itself as soon as it can.
2. What was wrong is told by `gpumon check --store.path FILE` with the version that wrote it, while no agent runs.
3. Nothing can be read any more: move the file away. The agent begins anew, and only what is wrong now is told.
""",
        node=past_unread,
        notice="store",
        clear_after=0.0,
    ),
    Check(
        name="gpumon_store_down",
        levels=(WARN,),
        help="The agent cannot write to disk.",
        steps="""\
1. Free space, or mend the file system: the reason names the file and what is wrong (full, read-only, damaged, hung).
   The agent goes on by itself and stores what it kept in memory. Where the file was deleted, moved or replaced, which
   it finds within a minute, it opens the path anew and stores all that it knows.
2. What happens meanwhile is lost when the agent is restarted before that.
""",
        node=store_down,
        notice="store",
        after=5 * MINUTE,
    ),
    Check(
        name="gpumon_reload_failed",
        levels=(WARN,),
        help="The configuration on disk is not good: the last good one is in force.",
        steps="""\
1. `gpumon config check` names what is wrong, with file and line.
2. Correct it and `systemctl reload gpumon`.
""",
        node=_noticed("configuration", "The configuration is"),
        notice="configuration",
        clear_after=0.0,
    ),
    Check(
        name="gpumon_kernel_log_down",
        levels=(WARN,),
        help="The kernel log cannot be read.",
        steps="""\
1. `ls -l /dev/kmsg`, and the agent's log: what did reading answer?
2. In a container mount /dev/kmsg; with a hardened unit allow it (DeviceAllow=char-mem, CAP_SYSLOG).
""",
        node=kernel_log_down,
        after=2 * MINUTE,
    ),
    Check(
        name="gpumon_kernel_log_lost",
        levels=(WARN,),
        help="Lines of the kernel log were overwritten before they were read.",
        steps="""\
1. Look for Xids of that time in the journal: `journalctl -k -g 'Xid|SXid'`.
2. Enlarge the kernel's buffer: boot with `log_buf_len=4M`.
""",
        node=kernel_log_lost,
        latch=Latch(quiet=HOUR),
        pages=False,
    ),
    Check(
        name="gpumon_poll_errors",
        levels=(WARN,),
        help="Driver calls fail again and again.",
        steps="""\
1. `gpumon_poll_errors_total` names the errors, the agent's log the functions.
2. Unknown errors: look for NVRM lines in the kernel log; a driver that was upgraded under the agent goes away with it.
""",
        node=poll_errors,
        after=10 * MINUTE,
        windows=(ERRORS,),
        inhibited_by={
            "gpu_driver_down": "node",
            "gpu_lost": "any",
            "gpu_missing": "any",
            "gpu_reset_required": "any",
            "gpu_init_failed": "any",
            "gpu_stuck": "any",
            "gpu_unreadable": "any",
        },
    ),
    Check(
        name="gpumon_poll_slow",
        levels=(WARN,),
        help="The driver answers slowly: often the first sign of a hang.",
        steps="""\
1. `gpumon_poll_duration_seconds` over the last day: since when?
2. Persistence mode off, many processes on the GPUs, or a sick system processor (Xid 119, 120) are the usual reasons.
3. Raise `poll.interval_seconds` when it stays so on a healthy node.
""",
        node=poll_slow,
        after=10 * MINUTE,
        limits=(SLOW_SHARE,),
        inhibited_by={"gpu_driver_down": "node", "gpu_stuck": "any"},
    ),
    Check(
        name="gpumon_sampler_restarting",
        levels=(WARN,),
        help="The process that reads the GPUs crashes or hangs again and again.",
        steps="""\
1. The agent's log says why each was replaced, and in which call on which GPU it was.
2. A crash inside the driver's library: reinstall the driver, or leave the GPU out with `gpus.exclude`.
""",
        node=sampler_restarting,
        windows=(RESTARTS,),
        limits=(MOST_RESTARTS,),
        inhibited_by={"gpu_driver_down": "node", "gpu_stuck": "any", "gpu_lost": "any"},
    ),
    Check(
        name="gpumon_child_abandoned",
        levels=(WARN,),
        help="A process of the agent sits in the driver, and SIGKILL does not end it.",
        steps="""\
1. Drain the node: whoever touches that GPU will hang too.
2. Reboot it; where the reboot hangs, power-cycle it.
""",
        node=children_abandoned,
        inhibited_by={"gpu_driver_down": "node", "gpu_stuck": "any"},
    ),
    Check(
        name="gpumon_links_unread",
        levels=(WARN,),
        help="Not all InfiniBand ports or services can be read.",
        steps="""\
1. The reason names what is left aside, and the file whose reading does not return: one of sysfs that hangs means a
   sick adapter. Look for its driver's lines in the kernel log.
""",
        node=_noticed("links", "Not all of the links can be read:"),
        notice="links",
        after=5 * MINUTE,
    ),
    Check(
        name="gpumon_check_failing",
        levels=(WARN,),
        help="A check fails by a mistake of the agent, and cannot tell how its device is.",
        steps="""\
1. Report it with the line of the agent's log that names the check and the error. The other checks go on.
2. Until it is mended, look after that part by other means, or switch the check off (`health.disabled_checks`).
""",
        node=check_failing,
    ),
)
