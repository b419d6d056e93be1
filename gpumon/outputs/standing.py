"""The run that tells how a probe stands, as JSON and in words."""

from __future__ import annotations

from gpumon.outputs.words import took_part
from gpumon.probe.core.current_result import newest, standing
from gpumon.probe.core.result import to_document
from gpumon.probe.core.state import ProbeState


def unanswered(state: ProbeState, probe: str) -> str:
    """That a later run left GPUs out of the one that stands, as a sentence; empty where the newest one stands."""
    run, last = standing(state.ran, probe), newest(state.ran, probe)
    if last is None or last == run:
        return ""
    return f"Run {last.id} came later and was {last.outcome}, but had only {took_part(to_document(last))}."
