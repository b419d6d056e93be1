"""Durations as Prometheus writes them: 90s, 24h, 1h30m; and moments, which may be told by them."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

LATEST = 250e9
"""Seconds since the epoch: no calendar goes on for longer."""
UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
PART = re.compile(r"([0-9]{1,9})(ms|[smhdw])")


def seconds(text: str) -> float | None:
    """None for what is no duration."""
    parts = PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(int(number) * UNITS[unit] for number, unit in parts)


def moment(text: str, now: float) -> float | None:
    """Seconds since the epoch: given as such, in RFC 3339, or as a duration before now; None for what is none."""
    if PART.match(text):
        before = seconds(text)
        return None if before is None else now - before
    try:
        told = float(text)
    except ValueError:
        return _from_rfc3339(text)
    return told if math.isfinite(told) else None


def utc(wall: float) -> datetime:
    """As a calendar tells it. What no calendar can, as of a spoilt disk, is the first or the last moment of it."""
    return datetime.fromtimestamp(min(max(wall, 0.0), LATEST), UTC)


def _from_rfc3339(text: str) -> float | None:
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
