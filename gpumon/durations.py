"""Durations as Prometheus writes them: 90s, 24h, 1h30m."""

from __future__ import annotations

import re

UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
PART = re.compile(r"([0-9]{1,9})(ms|[smhdw])")


def seconds(text: str) -> float | None:
    """None for what is no duration."""
    parts = PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(int(number) * UNITS[unit] for number, unit in parts)
