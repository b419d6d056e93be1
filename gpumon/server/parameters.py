"""Parses request parameters: durations, times, GPUs and probes. Each function raises a Problem for an invalid value."""

from __future__ import annotations

from pydantic import Field

from gpumon.model import durations
from gpumon.model.gpu_state import GpuState
from gpumon.probe.core.probes import PROBES, Probe
from gpumon.server.problem import Problem
from gpumon.state.report import Report

SINCE = Field(None, description="Only what is newer: 1h, RFC 3339, or seconds since the epoch.")
GPU = Field(None, description="Only of this GPU: uuid or index.")
_MAX_SHOWN = 40
"""Maximum number of characters of an invalid value that the answer repeats."""


def duration(name: str, text: str) -> float:
    """Convert the value of parameter `name`, such as 90s or 1h30m, to seconds."""
    seconds = durations.seconds(text)
    if seconds is None:
        raise _invalid_parameter(name, text, "a duration such as 90s, 24h or 1h30m")
    return seconds


def moment(name: str, text: str, now: float) -> float:
    """Convert the value of parameter `name` (Unix time, RFC 3339, or a duration before `now`) to Unix time."""
    seconds = durations.moment(text, now)
    if seconds is None:
        raise _invalid_parameter(name, text, "a duration before now (1h), RFC 3339, or seconds since the epoch")
    return seconds


def gpu(report: Report, text: str) -> GpuState:
    """Return the GPU with this uuid, index or PCI address."""
    state = report.gpu(text)
    if state is not None:
        return state
    gpus = [f"{state.index} ({state.uuid})" for state in report.gpus]
    raise Problem(
        404,
        "Unknown GPU",
        f"There is no GPU {text!r} in this node's inventory.",
        f"Use one of: {', '.join(gpus)}." if gpus else "The inventory is empty: see /api/v1/node for the reason.",
        gpus=[{"gpu": state.index, "uuid": state.uuid} for state in report.gpus],
    )


def probe(text: str) -> Probe:
    if text in PROBES:
        return PROBES[text]
    names = list(PROBES)
    detail = f"There is no probe {_shorten(text)!r}."
    raise Problem(404, "Unknown probe", detail, f"Use one of: {', '.join(names)}.", probes=names)


def _invalid_parameter(name: str, text: str, wanted: str) -> Problem:
    detail = f"{name}={_shorten(text)!r} is invalid."
    return Problem(400, "Invalid parameter", detail, f"Give {name} as {wanted}.")


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
