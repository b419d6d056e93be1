"""CHECKS: critical Xids, and SXids of NVSwitches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from gpumon.health import xids
from gpumon.health.catalogue import NVLINK, RECOVERY_ACTION, Explanation
from gpumon.health.check_row import DAY, Check, Latch, Paging, any_device, began_together, covers, same
from gpumon.health.facts import Facts, GpuCase
from gpumon.health.policy import COUNT, Limit
from gpumon.health.verdict import (
    ACTIONS,
    FAIL,
    NODE,
    OWN_ACTION,
    PASSED,
    WARN,
    Action,
    Clearance,
    Finding,
    Verdict,
    clear,
    fail,
    warn,
)
from gpumon.health.xid_texts import Scope, scope
from gpumon.health.xids import Class, Severity
from gpumon.model.error_event import FALLEN_OFF, SXID, ErrorEvent

RECURRING = Limit(
    "xid_recurring",
    5,
    "Minimum number of events of one critical Xid on one GPU within 24 hours that raises a verdict.",
    COUNT,
)

_TIMEOUT, _ADVISES_ON_TIMEOUT = 109, 570
"""Xid of a context switch timeout, and first driver that reports an Xid 154 after it if a reset is needed."""
_ORDER = list(ACTIONS)

MEMORY = frozenset({48, 63, 64, 92, 94, 95, 140, 154, 156, 157, 160, 161, 168, 171, 172, 177})
"""Xids of memory errors, and Xids that the driver reports together with them."""
LINKS = frozenset(row.code for row in xids.TABLE if row.kind is Class.LINK) | {RECOVERY_ACTION}
"""Xids of link errors, and the Xid that the driver reports together with them."""


class ExplainedXid(NamedTuple):
    """An Xid event of a GPU, and its meaning on this host."""

    event: ErrorEvent
    means: Explanation

    @property
    def code(self) -> int:
        return self.event.code

    @property
    def action(self) -> Action:
        return self.means.verdict_action

    @property
    def critical(self) -> bool:
        """Return whether the Xid is critical. An Xid 74 with harmless registers is not."""
        harmless = self.code == NVLINK and self.action is Action.NONE
        return self.means.severity is Severity.CRITICAL and not harmless

    @property
    def words(self) -> str:
        return f"Xid {self.code}: {self.means.name}.{' ' if self.means.detail else ''}{self.means.detail}"


def explained_xids(gpu: GpuCase, check: str, seconds: float | None = None) -> Iterator[ExplainedXid]:
    """Yield the GPU's Xids since the check's verdict was last cleared, each with its explanation.

    Only Xids of the last `seconds` are yielded; None: Xids of this boot. If there are several recovery actions (Xid
    154), only the newest is yielded.
    """
    facts = gpu.facts
    events = [
        event
        for event in gpu.events(check)
        if (event.last.boot_id == facts.boot_id if seconds is None else age(event, facts) <= seconds)
    ]
    advice = [event for event in events if event.code == RECOVERY_ACTION]
    for event in events:
        if event.code != RECOVERY_ACTION or event is advice[-1]:
            yield ExplainedXid(event, facts.catalogue.explain(event))


def xids_outside_maintenance(gpu: GpuCase, check: str, seconds: float) -> Iterator[ExplainedXid]:
    return (xid for xid in explained_xids(gpu, check, seconds) if not gpu.facts.planned_work.in_maintenance(xid.event))


def age(event: ErrorEvent, facts: Facts) -> float:
    """Return the seconds since the event last occurred."""
    return facts.now.wall - event.last.wall


def worst(events: Sequence[ExplainedXid]) -> ExplainedXid:
    """Return the Xid with the most severe action, then the newest; an Xid 154 only if no other has such an action."""
    return max(events, key=lambda xid: (_ORDER.index(xid.action), xid.code != RECOVERY_ACTION, xid.event.last.wall))


def evidence(events: Sequence[ExplainedXid]) -> dict[str, Any]:
    """Return the evidence of a verdict on these Xids: `xid` and `name` of the worst Xid, `also` lists other codes."""
    code, means = (first := worst(events)).code, first.means
    also = sorted({xid.code for xid in events} - {code})
    own_action = {OWN_ACTION: means.action} if means.is_own_action else {}
    return {"xid": code, "name": means.name} | ({"also": ", ".join(map(str, also))} if also else {}) | own_action


def finding(make: Callable[..., Finding], events: Sequence[ExplainedXid]) -> Finding:
    """Return the finding, made by `fail` or `warn`, on these Xids. The worst of them decides the action."""
    values, first = evidence(events), worst(events)
    also = f" Also Xid {values['also']}." if "also" in values else ""
    return make(first.words + also, first.action, at=max(xid.event.last.wall for xid in events), **values)


def codes(verdict: Verdict) -> set[int]:
    """Return the Xids in the evidence of a verdict."""
    also = str(verdict.evidence.get("also", "")).split(", ")
    return {int(code) for code in (verdict.evidence.get("xid"), *also) if code}


def is_superseded(gpu: GpuCase, check: str, events: Iterable[ExplainedXid]) -> bool:
    """Return whether a newer Xid 154, or the line of an Xid that NVML reported first, supersedes the open verdict."""
    verdict = gpu.facts.open.get((check, gpu.device))
    if verdict is None:
        return False
    here = verdict.raised.boot_id == gpu.facts.boot_id
    read = {
        xid.code for xid in events if xid.code == RECOVERY_ACTION or (here and xid.event.first.at <= verdict.raised.at)
    }
    return codes(verdict) <= read


def sxid_events(facts: Facts, check: str, affected: Scope) -> list[ErrorEvent]:
    """Return the SXids of this scope and boot since the check's verdict was last cleared, except in planned work."""
    return [
        event
        for event in facts.events_since(SXID, facts.cleared.get((check, NODE), 0.0))
        if event.last.boot_id == facts.boot_id
        and scope(event.code, event.all_texts, fatal=event.fatal) is affected
        and not facts.planned_work.contains(event)
    ]


def nvswitch_error(facts: Facts) -> Finding | None:
    """Return a failure for a fatal SXid of this boot, a warning for others of the last day, but none for links."""
    fatal = sxid_events(facts, "nvswitch_error", Scope.FABRIC)
    minor = [event for event in sxid_events(facts, "nvswitch_error", Scope.MINOR) if age(event, facts) <= DAY]
    if not fatal and not minor:
        verdict = facts.open.get(("nvswitch_error", NODE))
        return clear(Clearance.QUIET) if verdict is not None and verdict.level is WARN else PASSED
    last = max(fatal or minor, key=lambda event: event.last.wall)
    make, action = (fail, Action.REBOOT) if fatal else (warn, Action.NONE)
    words = f"NVSwitch {last.bus_id} had {'a fatal' if fatal else 'an'} error: SXid {last.code}."
    return make(words, action, at=last.last.wall, sxid=last.code, nvswitch=last.bus_id)


def recurring_xid(gpu: GpuCase) -> Finding | None:
    limit = gpu.facts.threshold(RECURRING)
    events = xids_outside_maintenance(gpu, "gpu_xid_recurring", DAY)
    criticals = [xid for xid in events if xid.critical and xid.code != RECOVERY_ACTION]
    counted = Counter(xid.code for xid in criticals).most_common(1)
    if not counted or counted[0][1] < limit:
        return PASSED
    code, times = counted[0]
    last = [xid for xid in criticals if xid.code == code][-1]
    words = f"{last.words} It came {times} times within 24 hours: resets do not help."
    return fail(words, Action.INSPECT, at=last.event.last.wall, xid=code, name=last.means.name, events=times)


def critical_xid(gpu: GpuCase) -> Finding | None:
    """Return a failure if critical Xids occurred in this boot since the check's verdict was last cleared.

    Xid 109 counts as critical if the driver is too old to request a needed reset by Xid 154.
    """
    events = tuple(explained_xids(gpu, "gpu_xid_critical"))
    major = gpu.facts.versions.get("driver", "").partition(".")[0]
    unadvised = {_TIMEOUT} if major.isdecimal() and int(major) < _ADVISES_ON_TIMEOUT else set()
    criticals = [xid for xid in events if xid.critical or xid.code in unadvised]
    if not criticals:
        return clear() if is_superseded(gpu, "gpu_xid_critical", events) else PASSED
    return finding(fail, criticals)


def explains_xids(verdict: Verdict, cause: Verdict, together: bool) -> bool:  # noqa: FBT001 - see Check.inhibited_if
    """Return whether the cause explains all Xids of the verdict. For `Check.inhibited_if`."""
    own = codes(verdict)
    match cause.check:
        case "gpu_row_remap_failed" | "gpu_memory_unrepairable" | "gpu_ecc_sram_threshold":
            return own <= MEMORY
        case "gpu_xid_recurring":
            return own - {RECOVERY_ACTION} <= codes(cause)
        case "nvswitch_error":
            return together and own <= LINKS
        case "gpu_lost" | "gpu_missing" if cause.device != verdict.device:
            return together and own <= LINKS
    return together and (FALLEN_OFF in own or covers(verdict, cause))


CHECKS = (
    Check(
        name="nvswitch_error",
        pages=Paging.NIGHT,
        levels=(FAIL, WARN),
        help="An NVSwitch reported an error in the kernel log (SXid).",
        steps="""\
1. The fabric manager's log names port and peer.
2. Fatal: drain and reboot the node; its GPUs and NVSwitches must be reset together.
3. Others: watch the NVLinks; several errors of one port point to a link. The warning clears after a day without errors.
4. If it recurs: run the vendor's diagnostics.
""",
        node=nvswitch_error,
        latch=Latch(),
        # A GPU that falls off the bus takes its links down. An SXid that is always fatal is no consequence of that.
        inhibited_by=any_device("gpu_lost", "gpu_missing"),
        inhibited_if=lambda verdict, cause, together: (
            verdict.level is WARN and began_together(verdict, cause, together)
        ),
    ),
    Check(
        name="gpu_xid_recurring",
        help="The same critical Xid recurs on one GPU.",
        steps="""\
1. Drain the node and take the GPU out of service: resets did not help.
2. Run the vendor's diagnostics (`dcgmi diag -r 4`), and check power, seating and cooling of this board.
3. Open a case with the vendor; `/api/v1/events` has the history.
""",
        gpu=recurring_xid,
        latch=Latch(quiet=DAY, repair=False),
        limits=(RECURRING,),
    ),
    Check(
        name="gpu_xid_critical",
        pages=Paging.NIGHT,
        help="A critical Xid occurred.",
        steps="""\
1. The hardware or driver failed, not the job; `gpumon xid CODE` explains the code.
2. Drain the node and perform the action of the verdict.
3. If the code recurs after the reset: run the vendor's diagnostics and replace the board.
""",
        gpu=critical_xid,
        latch=Latch(),
        inhibited_by=same("gpu_reset_required", "gpu_init_failed", "gpu_stuck")
        | same("gpu_row_remap_failed", "gpu_memory_unrepairable", "gpu_ecc_sram_threshold", "gpu_xid_recurring")
        | {"gpu_lost": "any", "gpu_missing": "any", "nvswitch_error": "node"},
        inhibited_if=explains_xids,
    ),
)
