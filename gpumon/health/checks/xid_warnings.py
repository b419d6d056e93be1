"""CHECKS: Xids that are a ticket at most: those of applications, and others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from gpumon.health.catalogue import NVLINK, RECOVERY_ACTION, Catalogue
from gpumon.health.check_row import DAY, MINUTE, Check, Latch, Paging, covers, covers_same_time, same
from gpumon.health.checks.memory_ecc import FAULTS, XIDS
from gpumon.health.checks.nvlink import LINK_XIDS
from gpumon.health.checks.xid import (
    MEMORY,
    ExplainedXid,
    age,
    codes,
    evidence,
    explained_xids,
    finding,
    is_superseded,
    xids_outside_maintenance,
)
from gpumon.health.facts import Facts, GpuCase
from gpumon.health.policy import COUNT, Limit
from gpumon.health.sample_windows import SampleWindow
from gpumon.health.verdict import FAIL, NODE, PASSED, WARN, Action, Finding, Verdict, clear, fail, warn
from gpumon.health.xids import Class, Severity
from gpumon.model.error_event import XID, ErrorEvent
from gpumon.model.snapshot import CONTAINER, SANDBOX

REPEATED = Limit(
    "xid_app_repeated",
    2,
    "Minimum number of Xid 13, 31 or 109 events on one GPU alone within 24 hours that raises a verdict.",
    COUNT,
)
_REPEATING = {13: Action.INSPECT, 31: Action.INSPECT, 109: Action.RESET}
"""Application Xids that point to the GPU if they recur on one GPU alone, with the action for each."""
_EXCEPTION = 13
_TIMEOUT = 109
_UNIT = re.compile(r"\bGPC (\d+), TPC (\d+)")


def repeated_xid(gpu: GpuCase) -> Finding | None:
    """Return a finding if an application Xid recurs on this GPU alone. Software would fail on several GPUs."""
    limit = gpu.facts.threshold(REPEATED)
    for code, action in _REPEATING.items():
        same_code = [xid for xid in xids_outside_maintenance(gpu, "gpu_xid_app_repeated", DAY) if xid.code == code]
        times, where = _occurrences([xid.event for xid in same_code])
        if times >= limit and not _is_on_other_gpu(code, gpu):
            words = f"Xid {code} occurred {times} times within 24 hours on this GPU{where}, and on no other."
            at = same_code[-1].event.last.wall
            make = fail if code == _TIMEOUT else warn
            return make(words, action, at=at, xid=code, events=times)
    verdict = gpu.facts.open.get(("gpu_xid_app_repeated", gpu.device))
    shared = verdict is not None and any(_is_on_other_gpu(code, gpu) for code in codes(verdict))
    return clear() if shared else PASSED


def _occurrences(events: list[ErrorEvent]) -> tuple[int, str]:
    """Return how many of these events count, and where they occurred: of Xid 13 only those of one unit (GPC, TPC)."""
    if not events or events[0].code != _EXCEPTION:
        return len(events), ""
    units = [set(_UNIT.findall(" ".join(event.all_texts))) for event in events]
    places_of_one = Counter(next(iter(places)) for places in units if len(places) == 1)
    if not places_of_one:
        return 0, ""
    (gpc, tpc), times = places_of_one.most_common(1)[0]
    return times, f" (always GPC {gpc}, TPC {tpc})"


def _is_on_other_gpu(code: int, gpu: GpuCase) -> bool:
    return any(
        code == event.code and age(event, gpu.facts) <= DAY
        for other in gpu.facts.gpus
        if other.uuid != gpu.state.uuid
        for event in gpu.facts.errors.get(other.uuid, ())
    )


def application_error(facts: Facts) -> Finding | None:
    """Return a warning if one application Xid occurred on several GPUs within 24 hours: software is at fault."""
    cleared, by_code = facts.cleared.get(("xid_app_everywhere", NODE), 0.0), dict[int, dict[str, float]]()
    for state in facts.gpus:
        for event in facts.errors.get(state.uuid, ()):
            recent = event.last.wall > cleared and age(event, facts) <= DAY
            warns = recent and facts.catalogue.explain(event).severity is Severity.WARNING
            if warns and facts.catalogue.xid(event.code).kind is Class.APPLICATION:
                by_code.setdefault(event.code, {})[state.uuid] = event.last.wall
    spread = {code: gpus for code, gpus in by_code.items() if len(gpus) > 1}
    if not spread:
        return PASSED
    code = max(spread, key=lambda code: max(spread[code].values()))
    words = f"Xid {code} occurred on {len(spread[code])} GPUs within 24 hours: an application failed, not a GPU."
    return warn(words, Action.RESTART, at=max(spread[code].values()), xid=code, gpus=len(spread[code]))


STORM = Limit("max_xid_messages_per_minute", 100, "Maximum rate of log messages of one Xid a minute.", COUNT)

_CONTAINED = 94
_LINES = SampleWindow("gpumon_gpu_xid_errors_total", MINUTE)
_SHORTEST = MINUTE / 2


def warning(gpu: GpuCase) -> Finding | None:
    """Return a warning for Xids of the last day; a failure if Xid 94 recurred outside of maintenance."""
    catalogue = gpu.facts.catalogue
    recent = [xid for xid in explained_xids(gpu, "gpu_xid") if age(xid.event, gpu.facts) <= DAY]
    warnings = [xid for xid in recent if _warns(xid, catalogue)]
    if not warnings:
        cancelled = any(xid.event.cancelled_wall is not None for xid in recent)
        return clear() if cancelled or is_superseded(gpu, "gpu_xid", recent) else PASSED
    contained = sum(xid.code == _CONTAINED and not gpu.facts.planned_work.in_maintenance(xid.event) for xid in warnings)
    if contained > 1:
        words = f"Xid {_CONTAINED}, a contained memory error, occurred {contained} times within 24 hours."
        at = max(xid.event.last.wall for xid in warnings)
        return fail(words, Action.RESET, at=at, xid=_CONTAINED, events=contained)
    return finding(warn, warnings)


def _warns(xid: ExplainedXid, catalogue: Catalogue) -> bool:
    """Return whether the Xid counts as a warning. Other checks report Xids of applications and unlisted Xids.

    An Xid 74 that is not critical by its registers counts if it requires an action.
    """
    row = catalogue.rows.get(xid.code)
    if row is None or row.kind is Class.APPLICATION:
        return False
    minor = xid.code == NVLINK and xid.means.severity is Severity.CRITICAL and not xid.critical
    return xid.means.severity is Severity.WARNING or (minor and xid.means.action != "nothing")


def unknown_code(gpu: GpuCase) -> Finding | None:
    unknown = [
        xid
        for xid in explained_xids(gpu, "gpu_xid_unknown")
        if xid.code not in gpu.facts.catalogue.rows and age(xid.event, gpu.facts) <= DAY
    ]
    if not unknown:
        return PASSED
    words = f"Xid {unknown[-1].code} is unknown to this version of gpumon; a newer driver may define it."
    return warn(words, Action.NONE, at=max(xid.event.last.wall for xid in unknown), **evidence(unknown))


def storm(gpu: GpuCase) -> Finding | None:
    limit = gpu.facts.threshold(STORM)
    if not gpu.growth(_LINES):
        return PASSED  # nearly always; reading the series of every code is costly
    series = [each for each in gpu.series(_LINES) if each.gain > 0 and each.covered_seconds >= _SHORTEST]
    rates = {int(each.labels["xid"]): each.gain / each.covered_seconds * MINUTE for each in series}
    code = max(rates, key=lambda each: rates[each], default=None)
    if code is None or rates[code] <= limit:
        return PASSED
    row = gpu.facts.catalogue.xid(code)
    words = f"Xid {code} occurs {rates[code]:.0f} times a minute: it may displace other messages in the kernel log."
    action = Action.RESTART if row.kind is Class.APPLICATION else Action.RESET
    return warn(words, action, xid=code, lines_per_minute=round(rates[code]))


def unplaced_xid(facts: Facts) -> Finding | None:
    """Return a finding on an Xid from a PCI address where a GPU of this host should be, but no GPU answers.

    PASSED in a container or sandbox, which may have been given only some of the GPUs of the kernel log and PCI bus.
    """
    if facts.bus is None:
        return None
    if facts.expectation.place in {CONTAINER, SANDBOX}:
        return PASSED
    unplaced_xids = list(_unplaced_xids(facts))
    if not unplaced_xids:
        verdict = facts.open.get(("xid_unplaced", NODE))
        placed = verdict is not None and not _is_unknown(str(verdict.evidence.get("pci_bus_id", "")), facts)
        return clear() if placed else PASSED
    first = max(unplaced_xids, key=lambda xid: (xid.critical, xid.event.last.wall))
    words = f"{first.words} It is from {first.event.bus_id}, where no GPU answers."
    make, action = (fail, first.action) if first.critical else (warn, Action.INSPECT)
    at = max(xid.event.last.wall for xid in unplaced_xids)
    return make(words, action, at=at, **evidence([first]), pci_bus_id=first.event.bus_id)


def _unplaced_xids(facts: Facts) -> Iterator[ExplainedXid]:
    """Yield the Xids of this boot and the last day at unknown addresses, except info and application errors."""
    cleared = facts.cleared.get(("xid_unplaced", NODE), 0.0)
    for event in facts.events_since(XID, cleared):
        recent = event.last.boot_id == facts.boot_id and age(event, facts) <= DAY
        if recent and _is_unknown(event.bus_id, facts):
            xid = ExplainedXid(event, facts.catalogue.explain(event))
            kind = facts.catalogue.xid(event.code).kind
            if xid.means.severity is not Severity.INFO and kind is not Class.APPLICATION:
                yield xid


def _is_unknown(bus_id: str, facts: Facts) -> bool:
    """Return whether no GPU of the inventory has this PCI address, and no excluded one or one of a guest."""
    ours = bus_id in facts.excluded or any(state.bus_id == bus_id for state in facts.gpus)
    return not ours and (facts.bus or {}).get(bus_id, "nvidia") in {"nvidia", ""}


_MEMORY = (
    "gpu_row_remap_failed",
    "gpu_memory_unrepairable",
    "gpu_ecc_uncorrectable",
    "gpu_ecc_corrected_storm",
    "gpu_ecc_corrected_high",
    "gpu_row_remap_pending",
)
_LINKS = ("nvlink_down", "nvlink_recovery_failed")


def explains_warning(verdict: Verdict, cause: Verdict, together: bool) -> bool:  # noqa: FBT001 - see Check.inhibited_if
    """Return whether the cause explains the warning. For `Check.inhibited_if`."""
    if cause.check in _MEMORY:
        return codes(verdict) <= MEMORY and covers(verdict, cause)
    if cause.check in _LINKS:
        return together and codes(verdict) <= LINK_XIDS | {RECOVERY_ACTION}
    return covers_same_time(verdict, cause, together)


def explains_storm(verdict: Verdict, cause: Verdict, together: bool) -> bool:  # noqa: FBT001 - see Check.inhibited_if
    """Return whether the cause is about the storm's Xid or overlaps in time, and its action includes the storm's."""
    return (together or codes(verdict) <= codes(cause)) and covers(verdict, cause)


APPLICATION_CHECKS = (
    Check(
        name="gpu_xid_app_repeated",
        levels=(FAIL, WARN),
        help="An application error recurs on one GPU alone: the GPU may be at fault.",
        steps="""\
1. Xid 13 or 31: did the same job run each time? Run it on another GPU: if it fails there too, the job is at fault.
2. Otherwise, or for Xid 109, drain the node, reset the GPU and run the vendor's diagnostics (`dcgmi diag -r 3`).
""",
        gpu=repeated_xid,
        latch=Latch(quiet=DAY),
        inhibited_by=FAULTS | XIDS,
        inhibited_if=covers_same_time,
        limits=(REPEATED,),
    ),
    Check(
        name="xid_app_everywhere",
        levels=(WARN,),
        help="The same application error occurred on several GPUs: software is at fault.",
        steps="""\
1. Inform the job's owner: check its log, its CUDA version and its addresses. Do not drain the node.
2. Restart the job when its cause is fixed.
""",
        node=application_error,
        latch=Latch(quiet=DAY, repair=False),
        pages=Paging.NEVER,
    ),
)

CHECKS = (
    Check(
        name="xid_unplaced",
        levels=(FAIL, WARN),
        help="The driver reported an error of a GPU that does not answer and is unknown to the agent.",
        steps="""\
1. `lspci -s ADDRESS` and `nvidia-smi -L`: is there a GPU, and does the driver list it?
2. Follow `gpumon xid CODE`. A GPU that was lost before the agent's first start needs a reboot to be detected.
""",
        node=unplaced_xid,
        after=MINUTE,
        latch=Latch(quiet=DAY),
        inhibited_by={"gpu_count_mismatch": "node"},
    ),
    Check(
        name="gpu_xid",
        levels=(FAIL, WARN),
        help="The driver reported an unusual condition of the GPU's hardware, firmware, links or of itself.",
        steps="""\
1. `gpumon xid CODE` explains it. If the GPU's job failed, restart it.
2. If Xid 94 recurs within a day: drain the node and reset the GPU.
3. If it recurs within days: run the vendor's diagnostics. After Xid 161, plan to replace the GPU: no spare is left.
""",
        gpu=warning,
        latch=Latch(quiet=DAY),
        inhibited_by=FAULTS | XIDS | same(*_MEMORY, *_LINKS, "gpu_recovery_action") | {"nvswitch_error": "node"},
        inhibited_if=explains_warning,
    ),
    Check(
        name="gpu_xid_unknown",
        levels=(WARN,),
        help="The driver reported an Xid that is unknown to this version of gpumon.",
        steps="""\
1. Look it up in NVIDIA's Xid catalogue, and read the message: `dmesg | grep Xid`.
2. Define it in the file of `xids.file` (docs/xids.md), or update the agent.
""",
        gpu=unknown_code,
        latch=Latch(quiet=DAY),
        inhibited_by=FAULTS | XIDS | same("gpu_recovery_action") | {"nvswitch_error": "node"},
        inhibited_if=covers_same_time,
    ),
    Check(
        name="gpu_xid_storm",
        levels=(WARN,),
        help="One Xid occurs so often that it floods the kernel log.",
        steps="""\
1. Which application causes it, and does it still work? If not, end it.
2. If the storm continues: drain the node and reset the GPU.
3. Other Xids of that time may be lost: `gpumon_kernel_log_overruns_total`.
""",
        gpu=storm,
        after=2 * MINUTE,
        inhibited_by=FAULTS | XIDS | same("gpu_xid", "gpu_xid_app_repeated"),
        inhibited_if=explains_storm,
        windows=(_LINES,),
        limits=(STORM,),
    ),
)
