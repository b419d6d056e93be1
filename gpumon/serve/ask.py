"""What a caller may ask with: durations, moments and which GPU. What cannot be read is a 400 that names it."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from gpumon.report import GpuState, Report
from gpumon.serve.problem import Problem

UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"([0-9]{1,9})(ms|[smhdw])")
_SHOWN = 40
"""Characters of an unreadable value that the answer repeats."""


def duration(name: str, text: str) -> float:
    """Seconds in a duration as Prometheus writes them: 90s, 24h, 1h30m."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise _unreadable(name, text, "a duration such as 90s, 24h or 1h30m")
    return sum(int(number) * UNITS[unit] for number, unit in parts)


def moment(name: str, text: str, now: float) -> float:
    """Seconds since the epoch: given as such, in RFC 3339, or as a duration before now."""
    if _PART.match(text):
        return now - duration(name, text)
    try:
        seconds = float(text)
    except ValueError:
        seconds = _from_rfc3339(name, text)
    if not math.isfinite(seconds):
        raise _unreadable(name, text, "a moment")
    return seconds


def gpu(report: Report, text: str) -> GpuState:
    """By uuid or index."""
    for state in report.gpus:
        if text in (state.uuid, str(state.index)):
            return state
    raise unknown_gpu(report, text)


def unknown_gpu(report: Report, text: str) -> Problem:
    known = [f"{state.index} ({state.uuid})" for state in report.gpus]
    return Problem(
        404,
        "Unknown GPU",
        f"There is no GPU {text!r} in this node's inventory.",
        f"Ask for one of: {', '.join(known)}." if known else "The inventory is empty: see /api/v1/node for the reason.",
        gpus=[{"gpu": state.index, "uuid": state.uuid} for state in report.gpus],
    )


def _from_rfc3339(name: str, text: str) -> float:
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise _unreadable(name, text, "a duration before now (1h), RFC 3339, or seconds since the epoch") from None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def _unreadable(name: str, text: str, wanted: str) -> Problem:
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return Problem(400, "Invalid parameter", f"{name}={shown!r} cannot be read.", f"Give {name} as {wanted}.")
