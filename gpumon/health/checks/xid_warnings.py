"""CHECKS: Xids that a person should look at in the daytime, and what many of them together mean."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from gpumon.health.catalogue import NVLINK, RECOVERY_ACTION, Catalogue
from gpumon.health.check import DAY, MINUTE, Check, Latch, covers, found_together, same
from gpumon.health.checks.memory_ecc import FAULTS, XIDS
from gpumon.health.checks.nvlink import LINK_XIDS
from gpumon.health.checks.xid import MEMORY, Told, age, codes, evidence, is_taken_back, reason, told, unplanned, worst
from gpumon.health.facts import Facts, GpuCase
from gpumon.health.policy import COUNT, Limit
from gpumon.health.sample_windows import SampleWindow
from gpumon.health.verdict import FAIL, NODE, OFF, PASSED, WARN, Action, Finding, Verdict, fail, recovered, warn
from gpumon.health.xids import Class, Severity
from gpumon.model.error_event import XID, ErrorEvent
from gpumon.model.snapshot import CONTAINER

REPEATED = Limit("xid_app_repeated", 2, "Bursts of Xid 13, 31 or 109 on one GPU alone within 24 hours.", COUNT)
STORM = Limit("xid_storm_per_minute", 100, "Lines a minute of one Xid that are a storm.", COUNT)

_STICKS = {13: Action.INSPECT, 31: Action.INSPECT, 109: Action.RESET}
"""Xids of an application that are the GPU's fault when they come back to one GPU alone, and what to do then."""
_EXCEPTION, _TIMEOUT, _CONTAINED = 13, 109, 94
_UNIT = re.compile(r"\bGPC (\d+), TPC (\d+)")
_LINES = SampleWindow("gpumon_gpu_xid_errors_total", MINUTE)
_SHORTEST = MINUTE / 2


def warning(gpu: GpuCase) -> Finding | None:
    """Those of this boot and the last day. What another Xid has cancelled is over at once."""
    catalogue = gpu.facts.catalogue
    recent = [one for one in told(gpu, "gpu_xid") if age(one.event, gpu.facts) <= DAY]
    found = [one for one in recent if _warns(one, catalogue)]
    if not found:
        cancelled = any(one.event.cancelled_wall is not None for one in recent)
        return recovered() if cancelled or is_taken_back(gpu, "gpu_xid", recent) else PASSED
    at = max(one.event.last_wall for one in found)
    contained = sum(one.code == _CONTAINED and not gpu.facts.in_maintenance(one.event) for one in found)
    if contained > 1:
        words = f"Xid {_CONTAINED}, a contained memory error, came {contained} times within 24 hours."
        return fail(words, Action.RESET, at=at, xid=_CONTAINED, events=contained)
    return warn(reason(found), worst(found).action, at=at, **evidence(found))


def _warns(one: Told, catalogue: Catalogue) -> bool:
    """Applications have checks of their own."""
    row = catalogue.rows.get(one.code)
    if row is None or row.kind is Class.APPLICATION:
        return False
    minor = one.code == NVLINK and one.means.severity is Severity.CRITICAL and not one.critical
    return one.means.severity is Severity.WARNING or (minor and one.means.action != "nothing")


def unknown_code(gpu: GpuCase) -> Finding | None:
    found = [
        one
        for one in told(gpu, "gpu_xid_unknown")
        if one.code not in gpu.facts.catalogue.rows and age(one.event, gpu.facts) <= DAY
    ]
    if not found:
        return PASSED
    words = f"Xid {found[-1].code} is not known to this version: a newer driver has it."
    return warn(words, Action.NONE, at=max(one.event.last_wall for one in found), **evidence(found))


def repeated(gpu: GpuCase) -> Finding | None:
    """Software meets several GPUs, so a code that others have too is not this one's fault."""
    limit = gpu.facts.limit(REPEATED)
    if limit is None:
        return OFF
    for code, action in _STICKS.items():
        found = [one for one in unplanned(gpu, "gpu_xid_app_repeated", DAY) if one.code == code]
        times, where = _sticking([one.event for one in found])
        if times >= limit and not _elsewhere(code, gpu):
            words = f"Xid {code} came {times} times within 24 hours to this GPU{where}, and to no other."
            at = found[-1].event.last_wall
            make = fail if code == _TIMEOUT else warn
            return make(words, action, at=at, xid=code, events=times)
    known = gpu.facts.open.get(("gpu_xid_app_repeated", gpu.device))
    shared = known is not None and any(_elsewhere(code, gpu) for code in codes(known))
    return recovered() if shared else PASSED


def _sticking(events: list[ErrorEvent]) -> tuple[int, str]:
    """How often, and where. An exception counts when it is always of one unit: those of software meet many."""
    if not events or events[0].code != _EXCEPTION:
        return len(events), ""
    units = [set(_UNIT.findall(" ".join((*event.texts, event.text)))) for event in events]
    one_each = Counter(next(iter(found)) for found in units if len(found) == 1)
    if not one_each:
        return 0, ""
    (gpc, tpc), times = one_each.most_common(1)[0]
    return times, f" (always GPC {gpc}, TPC {tpc})"


def _elsewhere(code: int, gpu: GpuCase) -> bool:
    return any(
        code == event.code and age(event, gpu.facts) <= DAY
        for other in gpu.facts.gpus
        if other.uuid != gpu.state.uuid
        for event in gpu.facts.errors.get(other.uuid, ())
    )


def everywhere(facts: Facts) -> Finding | None:
    """One code of applications on several GPUs."""
    met: dict[int, dict[str, float]] = {}
    for gpu in facts.gpu_cases:
        for one in _of_applications(facts, gpu.state.uuid):
            met.setdefault(one.code, {})[gpu.state.uuid] = one.last_wall
    spread = {code: gpus for code, gpus in met.items() if len(gpus) > 1}
    if not spread:
        return PASSED
    code = max(spread, key=lambda code: max(spread[code].values()))
    words = f"Xid {code} came to {len(spread[code])} GPUs within 24 hours: an application is at fault, no GPU."
    return warn(words, Action.RESTART, at=max(spread[code].values()), xid=code, gpus=len(spread[code]))


def _of_applications(facts: Facts, uuid: str) -> Iterator[ErrorEvent]:
    cleared = facts.cleared.get(("xid_app_everywhere", NODE), 0.0)
    for event in facts.errors.get(uuid, ()):
        if event.last_wall > cleared and age(event, facts) <= DAY:
            warns = facts.explained(event).severity is Severity.WARNING
            if warns and facts.catalogue.xid(event.code).kind is Class.APPLICATION:
                yield event


def storm(gpu: GpuCase) -> Finding | None:
    limit = gpu.facts.limit(STORM)
    if limit is None:
        return OFF
    series = [one for one in gpu.series(_LINES) if one.gain > 0 and one.covered >= _SHORTEST]
    rates = {int(one.labels["xid"]): one.gain / one.covered * MINUTE for one in series}
    code = max(rates, key=lambda one: rates[one], default=None)
    if code is None or rates[code] <= limit:
        return PASSED
    row = gpu.facts.catalogue.xid(code)
    words = f"Xid {code} comes {rates[code]:.0f} times a minute: it may drown others in the kernel log."
    action = Action.RESTART if row.kind is Class.APPLICATION else Action.RESET
    return warn(words, action, xid=code, lines_per_minute=round(rates[code]))


def unplaced(facts: Facts) -> Finding | None:
    """At an address where a GPU of ours should be: not excluded, and not given to another driver.

    A container sees the kernel log and the PCI bus of its host, and may have been given but some of the GPUs.
    """
    if facts.bus is None:
        return None
    if facts.expectation.place == CONTAINER:
        return PASSED
    found = list(_unplaced(facts))
    if not found:
        known = facts.open.get(("xid_unplaced", NODE))
        placed = known is not None and not _is_unknown(str(known.evidence.get("pci_bus_id", "")), facts)
        return recovered() if placed else PASSED
    first = max(found, key=lambda one: (one.critical, one.event.last_wall))
    words = f"{first.words} It came from {first.event.bus_id}, where no GPU answers."
    make, action = (fail, first.action) if first.critical else (warn, Action.INSPECT)
    at = max(one.event.last_wall for one in found)
    return make(words, action, at=at, xid=first.code, pci_bus_id=first.event.bus_id)


def _unplaced(facts: Facts) -> Iterator[Told]:
    """Of this boot and the last day; an application's errors are its own affair wherever it runs."""
    cleared = facts.cleared.get(("xid_unplaced", NODE), 0.0)
    for event in facts.events:
        recent = event.boot_id == facts.boot_id and event.last_wall > cleared and age(event, facts) <= DAY
        if event.kind == XID and not event.historical and recent and _is_unknown(event.bus_id, facts):
            one = Told(event, facts.explained(event))
            kind = facts.catalogue.xid(event.code).kind
            if one.means.severity is not Severity.INFO and kind is not Class.APPLICATION:
                yield one


def _is_unknown(bus_id: str, facts: Facts) -> bool:
    """No GPU of ours answers there, and one should."""
    ours = bus_id in facts.excluded or any(state.bus_id == bus_id for state in facts.gpus)
    return not ours and (facts.bus or {}).get(bus_id, "nvidia") in {"nvidia", ""}


_MEMORY = (
    "gpu_row_remap_failed",
    "gpu_ecc_uncorrectable",
    "gpu_ecc_corrected_storm",
    "gpu_ecc_corrected_high",
    "gpu_row_remap_pending",
)
_LINKS = ("nvlink_down", "nvlink_recovery_failed")


def of_warning(verdict: Verdict, cause: Verdict, together: bool) -> bool:  # noqa: FBT001 - see Check.inhibited_if
    """A memory's warnings stand under what is said of the memory, a link's under one that is down.

    Others under what was said beside them.
    """
    if cause.check in _MEMORY:
        return codes(verdict) <= MEMORY and covers(verdict, cause)
    if cause.check in _LINKS:
        return together and codes(verdict) <= LINK_XIDS | {RECOVERY_ACTION}
    return found_together(verdict, cause, together)


def of_storm(verdict: Verdict, cause: Verdict, together: bool) -> bool:  # noqa: FBT001 - see Check.inhibited_if
    """The same code, or what was said beside it."""
    return (together or codes(verdict) <= codes(cause)) and covers(verdict, cause)


CHECKS = (
    Check(
        name="xid_unplaced",
        levels=(FAIL, WARN),
        help="The driver reported an error of a GPU that does not answer and that the agent does not know.",
        steps="""\
1. `lspci -s ADDRESS` and `nvidia-smi -L`: is there a GPU, and does the driver know it?
2. Do what `gpumon xid CODE` says. A GPU that was lost before the agent's first start needs a reboot to be seen.
""",
        node=unplaced,
        after=MINUTE,
        latch=Latch(quiet=DAY),
    ),
    Check(
        name="gpu_xid",
        levels=(FAIL, WARN),
        help="The driver reported something unusual of the GPU's hardware, firmware, links or of itself.",
        steps="""\
1. `gpumon xid CODE` explains it. The job that ran on the GPU may have failed of it: restart it.
2. Xid 94 again within a day: drain the GPU and reset it.
3. It comes again within days: run the vendor's diagnostics.
""",
        gpu=warning,
        latch=Latch(quiet=DAY),
        inhibited_by=FAULTS | XIDS | same(*_MEMORY, *_LINKS, "gpu_recovery_action") | {"nvswitch_error": "node"},
        inhibited_if=of_warning,
    ),
    Check(
        name="gpu_xid_unknown",
        levels=(WARN,),
        help="The driver reported an Xid that this version does not know.",
        steps="""\
1. Look it up in NVIDIA's Xid catalogue, and read the line: `dmesg | grep Xid`.
2. Write into the file of `xids.file` what this host is to think of it (docs/xids.md), or update the agent.
""",
        gpu=unknown_code,
        latch=Latch(quiet=DAY),
        inhibited_by=FAULTS | XIDS | same("gpu_recovery_action") | {"nvswitch_error": "node"},
        inhibited_if=found_together,
    ),
    Check(
        name="gpu_xid_app_repeated",
        levels=(FAIL, WARN),
        help="An error that applications cause comes back to one GPU alone: it may be the GPU's.",
        steps="""\
1. Did the same job run each time? Run it on another GPU: if it fails there too, it is the job.
2. Else drain the GPU and run the vendor's diagnostics (`dcgmi diag -r 3`).
""",
        gpu=repeated,
        latch=Latch(quiet=DAY),
        inhibited_by=FAULTS | XIDS,
        inhibited_if=found_together,
        limits=(REPEATED,),
    ),
    Check(
        name="xid_app_everywhere",
        levels=(WARN,),
        help="The same error of applications came to several GPUs: software is at fault.",
        steps="""\
1. Tell who runs the job: its log, its CUDA version and its addresses are where to look. Do not drain the node.
""",
        node=everywhere,
        latch=Latch(quiet=DAY, repair=False),
        pages=False,
    ),
    Check(
        name="gpu_xid_storm",
        levels=(WARN,),
        help="One Xid comes so often that it floods the kernel log.",
        steps="""\
1. Which application does it, and does it still work? End it, or drain the GPU and reset it.
2. Other Xids of that time may be lost: `gpumon_kernel_log_overruns_total`.
""",
        gpu=storm,
        after=2 * MINUTE,
        inhibited_by=FAULTS | XIDS | same("gpu_xid", "gpu_xid_app_repeated"),
        inhibited_if=of_storm,
        windows=(_LINES,),
        limits=(STORM,),
    ),
)
