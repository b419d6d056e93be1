"""What a caller may ask with: durations, moments, which GPU and probe. What cannot be read is a 400 that names it."""

from __future__ import annotations

from gpumon.model import durations
from gpumon.model.gpu_state import GpuState
from gpumon.probe.core.probes import PROBES, Probe
from gpumon.server.problem import Problem
from gpumon.state.report import Report

_SHOWN = 40
"""Characters of an unreadable value that the answer repeats."""
_MOMENT = "a duration before now (1h), RFC 3339, or seconds since the epoch"


def duration(name: str, text: str) -> float:
    """Seconds in a duration as Prometheus writes them: 90s, 24h, 1h30m."""
    seconds = durations.seconds(text)
    if seconds is None:
        raise _unreadable(name, text, "a duration such as 90s, 24h or 1h30m")
    return seconds


def moment(name: str, text: str, now: float) -> float:
    """Seconds since the epoch: given as such, in RFC 3339, or as a duration before now."""
    found = durations.moment(text, now)
    if found is None:
        raise _unreadable(name, text, _MOMENT)
    return found


def gpu(report: Report, text: str) -> GpuState:
    """By uuid, index or PCI address."""
    found = report.gpu(text)
    if found is None:
        raise unknown_gpu(report, text)
    return found


def unknown_gpu(report: Report, text: str) -> Problem:
    known = [f"{state.index} ({state.uuid})" for state in report.gpus]
    return Problem(
        404,
        "Unknown GPU",
        f"There is no GPU {text!r} in this node's inventory.",
        f"Ask for one of: {', '.join(known)}." if known else "The inventory is empty: see /api/v1/node for the reason.",
        gpus=[{"gpu": state.index, "uuid": state.uuid} for state in report.gpus],
    )


def probe(text: str) -> Probe:
    """By name."""
    if text not in PROBES:
        raise unknown_probe(text)
    return PROBES[text]


def unknown_probe(text: str) -> Problem:
    names = list(PROBES)
    remedy = f"Ask for one of: {', '.join(names)}."
    return Problem(404, "Unknown probe", f"There is no probe {_shortened(text)!r}.", remedy, probes=names)


def _unreadable(name: str, text: str, wanted: str) -> Problem:
    detail = f"{name}={_shortened(text)!r} cannot be read."
    return Problem(400, "Invalid parameter", detail, f"Give {name} as {wanted}.")


def _shortened(text: str) -> str:
    """As much of it as an answer repeats."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
