"""The maintenance of the node as plain values, ready for JSON, and in words for people."""

from __future__ import annotations

from typing import Any

from gpumon.outputs.words import duration, rfc3339, seconds_between
from gpumon.report import Report

Document = dict[str, Any]


def maintenance(report: Report) -> Document | None:
    """The one in force."""
    one = report.maintenance
    if one is None:
        return None
    return {"since": rfc3339(one.began), "until": rfc3339(one.until), "reason": one.reason, "by": one.by}


def sentences(one: Document | None, now: str | None = None) -> list[str]:
    """What a document says, in a sentence or none; `now` is the time of the document."""
    if one is None:
        return []
    left = None if now is None else seconds_between(now, one["until"])
    lasting = "" if left is None else f", for {duration(max(0.0, left))} more"
    until = f"{one['until'][:10]} {one['until'][11:19]}"
    return [f"In maintenance until {until} UTC{lasting}, by {one['by']}: {one['reason'].rstrip('.')}. No alert pages."]
