"""A note about the newest run of a probe, for when an older run determines the probe's state."""

from __future__ import annotations

from gpumon.outputs.formatting import participants
from gpumon.probe.core.current_result import current_result, newest_result
from gpumon.probe.core.result import to_document
from gpumon.probe.core.state import ProbeState


def partial_run_note(state: ProbeState, probe: str) -> str:
    """Return a sentence which states that the newest run of a probe had too few GPUs to determine the probe's state.

    Skipped runs do not count. Return an empty string if the newest run determines the state, or without any run.
    """
    run, last = current_result(state.ran, probe), newest_result(state.ran, probe)
    if last is None or last == run:
        return ""
    return f"Run {last.id} is newer and was {last.outcome}, but had only {participants(to_document(last))}."
