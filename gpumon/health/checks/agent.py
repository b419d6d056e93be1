"""CHECKS: faults of the agent itself, such as an unwritable store. They do not make the node unfit for work."""

from __future__ import annotations

from collections.abc import Callable

from gpumon.health.check_row import HOUR, MINUTE, Check, Latch, Paging, any_device
from gpumon.health.facts import Facts
from gpumon.health.policy import COUNT, SHARE, Limit
from gpumon.health.sample_windows import SampleWindow
from gpumon.health.verdict import HISTORY_UNREAD, LOST_TO, NODE, PASSED, WARN, Action, Finding, clear, unknown, warn
from gpumon.model.error_event import OVERRUN

ERRORS = SampleWindow("gpumon_poll_errors_total", 5 * MINUTE)
RESTARTS = SampleWindow("gpumon_sampler_restarts_total", 10 * MINUTE)
SLOW_SHARE = Limit("max_poll_duration_ratio", 0.5, "Maximum share of the poll interval that a fast poll takes.", SHARE)
RESTART_COUNT = Limit(
    "sampler_restarts", 3, "Minimum number of sampler replacements in ten minutes that raises a verdict.", COUNT
)
_BY_FAULTS = frozenset({"crash", "deadline"})
"""Values of the label `reason` of gpumon_sampler_restarts_total that stand for a fault."""


def _notice_check(subject: str, reason: str, action: Action = Action.FIX) -> Callable[[Facts], Finding]:
    """Return a check function that warns while Facts.notices has this subject. `reason` precedes the notice's text."""

    def evaluate(facts: Facts) -> Finding:
        words = facts.notices.get(subject)
        return warn(f"{reason} {words.rstrip('.')}.", action) if words else PASSED

    return evaluate


def stored_state_unread(facts: Facts) -> Finding | None:
    key = (HISTORY_UNREAD, NODE)
    if facts.recalled and facts.lost_to and facts.cleared.get(key, 0.0) < facts.started:
        reason = f"The store was damaged, and verdicts from before the start are lost. The file is now {facts.lost_to}."
        return unknown(reason, Action.FIX, **{LOST_TO: facts.lost_to})._replace(at=facts.started)
    if facts.recalled:
        verdict = facts.open.get(key)
        return PASSED if verdict is not None and LOST_TO in verdict.evidence else clear()
    words = facts.notices.get("store", "it does not respond").rstrip(".")
    return unknown(f"Stored health state could not be read at startup; do not treat this node as healthy: {words}.")


def store_down(facts: Facts) -> Finding | None:
    """Return a warning if the store cannot be written. Before it was read, `gpumon_history_unread` reports it."""
    if facts.node.store_up is None or not facts.recalled:
        return None
    words = facts.notices.get("store", "see the log")
    lost = "Events and verdicts are kept in memory only: "
    return PASSED if facts.node.store_up else warn(f"{lost}{words.rstrip('.')}.", Action.FIX)


def kernel_log_down(facts: Facts) -> Finding | None:
    """Return a warning if the kernel log cannot be read. The metric `gpumon_collector_denied` reports a denial."""
    if facts.node.kernel_log_up is None or (facts.node.collector_denied or {}).get("kernel_log"):
        return None
    reason = "The kernel log cannot be read: SXids, and Xids of GPUs that do not answer, are not detected."
    return PASSED if facts.node.kernel_log_up else warn(reason, Action.FIX)


def kernel_log_lost(facts: Facts) -> Finding:
    cleared = facts.cleared.get(("gpumon_kernel_log_lost", NODE), 0.0)
    overruns = list(facts.events_since(OVERRUN, cleared))
    if not overruns:
        return PASSED
    reason = "The kernel log was overwritten before it was read: Xids may be missing."
    return warn(reason, Action.FIX, at=overruns[-1].last.wall, times=float(sum(event.count for event in overruns)))


def poll_errors(facts: Facts) -> Finding | None:
    if facts.node.poll_errors_total is None:
        return None
    gained: dict[str, float] = {}
    for series in facts.series(ERRORS):
        if series.gain > 0:
            gained[series.labels["error"]] = gained.get(series.labels["error"], 0.0) + series.gain
    if not gained:
        return PASSED
    worst = max(gained, key=lambda error: gained[error])
    count = sum(gained.values())
    reason = f"{count:.0f} driver calls failed in five minutes, mostly {worst}: some readings are missing."
    return warn(reason, Action.FIX, poll_errors=count)


def poll_slow(facts: Facts) -> Finding | None:
    share, took = facts.threshold(SLOW_SHARE), (facts.node.poll_duration_seconds or {}).get("fast")
    if took is None or not facts.node.nvml_up:
        return None
    if took <= share * facts.interval:
        return PASSED
    reason = f"A fast poll takes {took:.2f} s with an interval of {facts.interval:g} s: the driver is slow."
    return warn(reason, Action.FIX, poll_duration_seconds=took)


def sampler_restarting(facts: Facts) -> Finding | None:
    limit = facts.threshold(RESTART_COUNT)
    times = sum(series.gain for series in facts.series(RESTARTS) if series.labels.get("reason") in _BY_FAULTS)
    if times < limit:
        return PASSED
    reason = f"The process that reads the GPUs was replaced {times:.0f} times in ten minutes."
    return warn(reason, Action.FIX, sampler_restarts=times)


def children_abandoned(facts: Facts) -> Finding | None:
    count = facts.node.abandoned_children
    if count is None:
        return None
    reason = f"{count:.0f} of the agent's processes cannot be killed: they are blocked in the driver until a reboot."
    return warn(reason, Action.REBOOT, abandoned_children=count) if count else PASSED


def check_failing(facts: Facts) -> Finding:
    if not facts.failing_checks:
        return PASSED
    (check, device), error = min(facts.failing_checks.items())
    index = {state.uuid: state.index for state in facts.gpus}.get(device)
    where = f" of GPU {index}" if index is not None else f" of {device}" if device else ""
    more = f" (and {len(facts.failing_checks) - 1} more)" if len(facts.failing_checks) > 1 else ""
    reason = f"The check {check}{where}{more} fails: {error}. Its verdicts do not change. Report this error."
    return warn(reason, Action.FIX, failing_check=check, failing=float(len(facts.failing_checks)))


CHECKS = (
    Check(
        name=HISTORY_UNREAD,
        levels=(),
        help="Stored health state could not be read at startup; do not treat this node as healthy.",
        steps="""\
1. The reason names the file and the error. Fix it, or configure another path (`--store.path`). The agent retries.
2. If the store was written by another version, run that version.
3. If the file cannot be repaired, move it away. The agent then starts with an empty store.
4. If the store was damaged, faults that cannot be observed again are lost with it. The alert rules keep the alerts of
   before for a day: carry out their actions, then run `gpumon clear gpumon_history_unread`.
""",
        node=stored_state_unread,
        latch=Latch(repair=False),
        notice="store",
        clear_after=0.0,
    ),
    Check(
        name="gpumon_store_down",
        levels=(WARN,),
        help="The agent cannot write to its store.",
        steps="""\
1. The reason names the file and the error. Free space or fix the file system. Do not restart the agent: it stores what
   it keeps in memory as soon as it can; a restart loses that. A deleted or replaced file is re-created in a minute.
""",
        node=store_down,
        notice="store",
        after=5 * MINUTE,
    ),
    Check(
        name="gpumon_notifications_failing",
        levels=(WARN,),
        help="A receiver gets no notifications of this agent.",
        steps="""\
1. `gpumon notify test` on the node sends a test to each receiver and prints the error.
2. `gpumon_notifications_total` shows since when. What fires is sent when the receiver answers again.
""",
        node=_notice_check("notifications", "Notifications are not delivered:"),
        notice="notifications",
    ),
    Check(
        name="gpumon_reload_failed",
        levels=(WARN,),
        help="The configuration file is invalid: the last valid configuration is active.",
        steps="""\
1. `gpumon config check` lists the errors with file and line.
2. Correct them and run `systemctl reload gpumon`.
""",
        node=_notice_check("configuration", "The configuration is"),
        notice="configuration",
        clear_after=0.0,
    ),
    Check(
        name="gpumon_kernel_log_down",
        levels=(WARN,),
        help="The kernel log cannot be read.",
        steps="""\
1. Check `ls -l /dev/kmsg` and the agent's log for the error.
2. In a container, mount /dev/kmsg. In a hardened unit, allow it (DeviceAllow=char-mem, CAP_SYSLOG).
""",
        node=kernel_log_down,
        after=2 * MINUTE,
    ),
    Check(
        name="gpumon_kernel_log_lost",
        levels=(WARN,),
        help="Kernel log messages were overwritten before they were read.",
        steps="""\
1. Search the journal for Xids of that time: `journalctl -k -g 'Xid|SXid'`.
2. Enlarge the kernel's buffer: boot with `log_buf_len=4M`.
""",
        node=kernel_log_lost,
        latch=Latch(quiet=HOUR),
        pages=Paging.NEVER,
    ),
    Check(
        name="gpumon_poll_errors",
        levels=(WARN,),
        help="Driver calls fail repeatedly.",
        steps="""\
1. `gpumon_poll_errors_total` names the errors, the agent's log the functions.
2. For unknown errors, search the kernel log for NVRM messages. Errors after a driver upgrade stop by themselves.
""",
        node=poll_errors,
        after=10 * MINUTE,
        windows=(ERRORS,),
        inhibited_by={
            "gpu_driver_down": "node",
            **any_device("gpu_lost", "gpu_missing", "gpu_reset_required", "gpu_init_failed", "gpu_stuck"),
            "gpu_unreadable": "any",
        },
    ),
    Check(
        name="gpumon_poll_slow",
        levels=(WARN,),
        help="The driver is slow, which often precedes a hang.",
        steps="""\
1. Check `gpumon_poll_duration_seconds` over the last day: when did it begin?
2. Usual causes: persistence mode disabled, many processes on the GPUs, a failing GPU system processor (Xid 119).
3. If it persists on a healthy node, increase `poll.interval_seconds`.
""",
        node=poll_slow,
        after=10 * MINUTE,
        limits=(SLOW_SHARE,),
        inhibited_by={"gpu_driver_down": "node", "gpu_stuck": "any"},
    ),
    Check(
        name="gpumon_sampler_restarting",
        levels=(WARN,),
        help="The process that reads the GPUs crashes or hangs repeatedly.",
        steps="""\
1. The agent's log has the reason of each replacement, with the call and the GPU.
2. If the driver's library crashes, reinstall the driver, or exclude the GPU with `gpus.exclude`.
""",
        node=sampler_restarting,
        windows=(RESTARTS,),
        limits=(RESTART_COUNT,),
        inhibited_by={"gpu_driver_down": "node", "gpu_stuck": "any", "gpu_lost": "any"},
    ),
    Check(
        name="gpumon_child_abandoned",
        levels=(WARN,),
        help="A process of the agent is blocked in the driver and cannot be killed.",
        steps="""\
1. Drain the node: every process that uses that GPU will block too.
2. Reboot it; if the reboot hangs, power-cycle it.
""",
        node=children_abandoned,
        inhibited_by={"gpu_driver_down": "node", "gpu_stuck": "any"},
    ),
    Check(
        name="gpumon_links_unread",
        levels=(WARN,),
        help="Some InfiniBand ports or services cannot be read.",
        steps="""\
1. The reason names the quarantined device and the file. A sysfs file that hangs means a failing adapter: search the
   kernel log for its driver's messages.
""",
        node=_notice_check("links", "Some links cannot be read:", Action.INSPECT),
        notice="links",
        after=5 * MINUTE,
    ),
    Check(
        name="gpumon_check_failing",
        levels=(WARN,),
        help="A check fails with an internal error and cannot evaluate its device.",
        steps="""\
1. Report it with the agent's log message that names check and error. Other checks are not affected.
2. Until it is fixed, monitor that device by other means, or disable the check (`health.disabled_checks`).
""",
        node=check_failing,
    ),
)
