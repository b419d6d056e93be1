"""Active holds as sentences."""

from __future__ import annotations

from gpumon.outputs.maintenance import lasting
from gpumon.outputs.responses.base import Document

MOST_NAMED = 3
"""Holders that a sentence names."""


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
