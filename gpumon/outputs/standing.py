"""The run that tells how a probe stands, as JSON and in words."""

from __future__ import annotations

from typing import Any

from gpumon.outputs.words import took_part
from gpumon.probe.core.result import to_document
from gpumon.probe.core.standing import newest, standing
from gpumon.probe.core.state import ProbeState


def document(state: ProbeState, probe: str, wall: float) -> dict[str, Any] | None:
    """Which it is, how it ended, and why none that came later answers it."""
    run = standing(state.ran, probe)
    if run is None:
        return None
    return {
        "id": run.id,
        "outcome": run.outcome,
        "reason": run.reason,
        "age_seconds": round(max(0.0, wall - run.ended), 3),
        "unanswered": unanswered(state, probe),
    }


def unanswered(state: ProbeState, probe: str) -> str:
    """That a later run left GPUs out of the one that stands, as a sentence; empty where the newest one stands."""
    run, last = standing(state.ran, probe), newest(state.ran, probe)
    if last is None or last == run:
        return ""
    return f"Run {last.id} came later and was {last.outcome}, but had only {took_part(to_document(last))}."
