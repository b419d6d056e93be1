"""Who keeps probes away now, as plain values, ready for JSON, and in words for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpumon.model.hold import Hold, in_force
from gpumon.outputs.maintenance import lasting
from gpumon.outputs.words import rfc3339
from gpumon.state.report import Report

Document = dict[str, Any]
MOST_NAMED = 3
"""Holders that a sentence names."""


def hold(report: Report) -> Document | None:
    """All that are in force; None when there is none."""
    return document(in_force(report.holds))


def document(held: Sequence[Hold]) -> Document | None:
    """The same of these."""
    if not held:
        return None
    return {"until": rfc3339(max(one.until for one in held)), "holders": [_holder(one) for one in held]}


def _holder(one: Hold) -> Document:
    return {
        "owner": one.owner,
        "reason": one.reason,
        "by": one.by,
        "since": rfc3339(one.until - one.seconds),
        "until": rfc3339(one.until),
    }


def sentences(one: Document | None, now: str | None = None) -> list[str]:
    """What a document says, in a sentence or none; `now` is the time of the document."""
    if one is None:
        return []
    last = max(one["holders"], key=lambda holder: str(holder["until"]))
    until = f"{one['until'][:10]} {one['until'][11:19]} UTC{'' if now is None else lasting(last, now)}"
    named = [_words(holder) for holder in one["holders"][:MOST_NAMED]]
    more = len(one["holders"]) - len(named)
    return [f"No probe runs until {until}: held {'; '.join(named)}{f'; and {more} more' if more else ''}."]


def _words(holder: Document) -> str:
    owner = f" for {holder['owner']}" if holder["owner"] else ""
    reason = f" ({holder['reason']})" if holder["reason"] else ""
    return f"by {holder['by']}{owner}{reason}"
