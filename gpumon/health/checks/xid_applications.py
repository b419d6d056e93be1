"""CHECKS: Xids that applications cause."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from gpumon.health.check_row import DAY, Check, Latch, Paging, covers_same_time
from gpumon.health.checks.memory_ecc import FAULTS, XIDS
from gpumon.health.checks.xid import age, codes, xids_outside_maintenance
from gpumon.health.device_case import GpuCase
from gpumon.health.facts import Facts
from gpumon.health.policy import COUNT, Limit
from gpumon.health.verdict import FAIL, NODE, PASSED, WARN, Action, Finding, clear, fail, warn
from gpumon.health.xids import Class, Severity
from gpumon.model.error_event import ErrorEvent

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
    """Return a failure (Xid 109) or a warning if an application Xid recurs on this GPU and on no other.

    An error in software would occur on several GPUs.
    """
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
    """Return how many of these events of one Xid count, and where on the GPU they occurred, as text to be appended.

    All count, and the text is "", except for Xid 13: only the events in the unit (GPC and TPC) that has most of them
    count, because software errors occur in many units.
    """
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
    by_code: dict[int, dict[str, float]] = {}
    for state in facts.gpus:
        for event in _application_events(facts, state.uuid):
            by_code.setdefault(event.code, {})[state.uuid] = event.last.wall
    spread = {code: gpus for code, gpus in by_code.items() if len(gpus) > 1}
    if not spread:
        return PASSED
    code = max(spread, key=lambda code: max(spread[code].values()))
    words = f"Xid {code} occurred on {len(spread[code])} GPUs within 24 hours: an application failed, not a GPU."
    return warn(words, Action.RESTART, at=max(spread[code].values()), xid=code, gpus=len(spread[code]))


def _application_events(facts: Facts, uuid: str) -> Iterator[ErrorEvent]:
    cleared = facts.cleared.get(("xid_app_everywhere", NODE), 0.0)
    for event in facts.errors.get(uuid, ()):
        if event.last.wall > cleared and age(event, facts) <= DAY:
            warns = facts.explain(event).severity is Severity.WARNING
            if warns and facts.catalogue.xid(event.code).kind is Class.APPLICATION:
                yield event


CHECKS: tuple[Check, ...] = (
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
