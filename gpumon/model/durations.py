"""Durations as Prometheus writes them (90s, 24h, 1h30m), and timestamps."""

from __future__ import annotations

import contextlib
import math
import re
from datetime import datetime, timezone

LATEST = 250e9
"""Latest Unix time in seconds that `utc` converts, in the year 9892: `datetime` ends with the year 9999."""
UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
PART = re.compile(r"([0-9]{1,9})(ms|[smhdw])")


def seconds(text: str) -> float | None:
    """Convert a duration such as `1h30m` to seconds; return None for other text."""
    parts = PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(int(number) * UNITS[unit] for number, unit in parts)


def as_duration(seconds: float) -> str:
    """Return a number of seconds in the syntax of Prometheus: 90 is 1m30s."""
    left, text = round(seconds), ""
    for unit in "hms":
        count, left = divmod(left, round(UNITS[unit]))
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def moment(text: str, now: float) -> float | None:
    """Convert text to Unix time, from Unix time, RFC 3339 or a duration before `now`; None for other text."""
    if PART.match(text):
        before = seconds(text)
        return None if before is None else now - before
    with contextlib.suppress(ValueError):
        value = float(text)
        return value if math.isfinite(value) else None
    try:
        parsed = from_rfc3339(text)
    except ValueError:
        return None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc)).timestamp()


def utc(wall: float) -> datetime:
    """Convert Unix time to a UTC datetime. Times before 1970 and after LATEST are clamped."""
    return datetime.fromtimestamp(min(max(wall, 0.0), LATEST), timezone.utc)


def from_rfc3339(text: str) -> datetime:
    """Parse an RFC 3339 time, or another form that `datetime.fromisoformat` accepts; raise ValueError for other text.

    The result is naive if the text has no offset. Before Python 3.11 `fromisoformat` itself rejects a final Z.
    """
    return datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
