"""Verdicts as plain values, ready for JSON, and in words for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpumon.health.check import Check
from gpumon.health.table import BY_NAME
from gpumon.health.terms import ACTIONS, WAYS, Level
from gpumon.health.verdict import Ruling, Verdict
from gpumon.model.gpu_state import GpuState
from gpumon.outputs.asked import asked
from gpumon.outputs.maintenance import maintenance
from gpumon.outputs.words import duration, rfc3339
from gpumon.state.report import Report

Document = dict[str, Any]

MOST_SHOWN = 100
"""Changes in one document."""


def health(report: Report, boot: float) -> Document:
    """What is wrong, the worst first, each with what follows from it; every GPU; what changed, the newest first.

    `boot`: now, on CLOCK_BOOTTIME.
    """
    known = report.health
    return {
        "level": Level(int(report.judged().node_health or 0)).word,
        "judged": rfc3339(known.judged_wall),
        "judged_age_seconds": None if known.judged_at is None else round(boot - known.judged_at, 3),
        "score": known.score,
        "verdicts": [verdict(one, report) | {"consequences": _consequences(one, report)} for one in known.primary],
        "gpus": [_gpu(state) for state in report.gpus],
        "gpus_awaited": _awaited(report),
        "maintenance": maintenance(report),
        "rulings": [ruling(one, report) for one in reversed(known.history[-MOST_SHOWN:])],
    }


def _awaited(report: Report) -> int:
    """GPUs that should be here and that the driver does not count, whether or not that is a verdict yet."""
    expected, visible = report.node.gpus_expected, report.node.gpus_visible
    return 0 if expected is None or visible is None else max(0, int(expected - visible))


def _gpu(state: GpuState) -> Document:
    return {
        "gpu": state.index,
        "nvml_index": state.nvml_index,
        "uuid": state.uuid,
        "pci_bus_id": state.bus_id,
        "migs": [one.uuid for one in state.migs],
        "level": Level(int(state.gpu.health or 0)).word,
        "fault": state.fault,
        "released": state.released,
    }


def title(one: Verdict) -> str:
    """What is wrong when this check speaks."""
    check = BY_NAME.get(one.check)
    return check.help.rstrip(".") if check else one.check


def ways_out(check: Check) -> Sequence[str]:
    """What ends a latched verdict of this check, but for an acknowledgement."""
    if check.latch is None:
        return ()
    repair = ("a reset or reboot" if check.gpu else "a reboot",) if check.latch.repair else ()
    return (*repair, *((f"{duration(check.latch.quiet)} without it",) if check.latch.quiet is not None else ()))


def place(verdict: Document) -> str:
    """The GPU by its index, a port by its name; nothing for the node."""
    return verdict["device"] or "" if verdict["gpu"] is None else f"GPU {verdict['gpu']}"


def name(verdict: Document) -> str:
    """The check, and where."""
    return f"{verdict['check']} of {place(verdict) or 'the node'}"


def verdict(one: Verdict, report: Report) -> Document:
    """One verdict that stands, without what follows from it."""
    known = report.health
    booted = None if known.judged_wall is None or known.judged_at is None else known.judged_wall - known.judged_at
    return _told(one, report) | asked(one, report.boot_id, booted)


def _told(one: Verdict, report: Report) -> Document:
    """As it is, or was when it was ruled."""
    state = report.gpu(one.device) if one.device else None
    return {
        "check": one.check,
        "level": one.level.word,
        "title": title(one),
        "device": one.device or None,
        "gpu": None if state is None else state.index,
        "reason": one.reason,
        "action": one.action.value,
        "action_words": ACTIONS[one.action],
        "repair": None,
        "repaired": None,
        "evidence": dict(one.evidence),
        "active": one.active,
        "since": rfc3339(one.since),
        "seen": rfc3339(one.seen),
    }


def ruling(one: Ruling, report: Report) -> Document:
    return {
        "time": rfc3339(one.wall),
        "change": one.change.value,
        "way": None if one.way is None else one.way.value,
        "way_words": "" if one.way is None else WAYS[one.way],
        "note": one.note,
        "muted": one.muted,
        "verdict": _told(one.verdict, report),
    }


def _consequences(one: Verdict, report: Report) -> Sequence[Document]:
    return [verdict(other, report) for other in report.health.following(one)]
