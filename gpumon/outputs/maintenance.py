"""The active maintenance window as sentences."""

from __future__ import annotations

from gpumon.outputs.formatting import duration, seconds_between
from gpumon.outputs.responses.base import Document

NOISE = 60.0
"""Seconds by which the end may have passed, and the clock may have moved, before somebody has looked."""


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
