"""The maintenance of the node as plain values, ready for JSON, and in words for people."""

from __future__ import annotations

from typing import Any

from gpumon.outputs.words import duration, rfc3339, seconds_between
from gpumon.state.report import Report

Document = dict[str, Any]
NOISE = 60.0
"""Seconds by which the end may have passed, and the clock may have moved, before somebody has looked."""


def maintenance(report: Report) -> Document | None:
    """The one in force."""
    one = report.maintenance
    if one is None:
        return None
    return {"since": rfc3339(one.until - one.seconds), "until": rfc3339(one.until), "reason": one.reason, "by": one.by}


def sentences(one: Document | None, now: str | None = None) -> list[str]:
    """What a document says, in a sentence or none; `now` is the time of the document."""
    if one is None:
        return []
    until = f"{one['until'][:10]} {one['until'][11:19]}"
    more = "" if now is None else lasting(one, now)
    return [f"In maintenance until {until} UTC{more}, by {one['by']}: {one['reason'].rstrip('.')}. No alert pages."]


def lasting(one: Document, now: str) -> str:
    """For how long more, in words; what lasts has `since` and `until`."""
    lasted, left = seconds_between(one["since"], now), seconds_between(now, one["until"])
    if lasted is None or left is None or min(lasted, left) < -NOISE:
        return " (the clock says otherwise, and is not believed yet after the boot)"
    return f", for {duration(left)} more"
