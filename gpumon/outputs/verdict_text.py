"""Text about verdicts, for the page, the terminal and the API."""

from __future__ import annotations

from collections.abc import Sequence

from gpumon.health.check_row import Check
from gpumon.health.table import BY_NAME
from gpumon.health.verdict import Verdict
from gpumon.outputs.formatting import duration, rfc3339
from gpumon.outputs.responses.base import Document
from gpumon.state.report import Report


def title(verdict: Verdict) -> str:
    """Return the help text of a verdict's check as a title; the check's name if this version lacks the check."""
    check = BY_NAME.get(verdict.check)
    return check.help.rstrip(".") if check else verdict.check


def is_unobserved(verdict: Verdict, report: Report) -> bool:
    """Return True if a verdict is open only because its GPU cannot be read now: it has a fault or is released.

    A latched or active verdict is never unobserved.
    """
    check, state = BY_NAME.get(verdict.check), report.gpu(verdict.device) if verdict.device else None
    is_read = state is None or (state.fault is None and not state.released)
    return not (verdict.active or is_read or check is None or check.latch is not None)


def current_reason(verdict: Verdict, report: Report) -> str:
    """Return the reason of a verdict. It begins with the time of the last observation if `is_unobserved` is True."""
    if not is_unobserved(verdict, report):
        return verdict.reason
    last_seen = rfc3339(verdict.last_active.wall)
    return f"Last observed at {last_seen[:10]} {last_seen[11:19]} UTC: {verdict.reason}"


def clearing_conditions(check: Check) -> Sequence[str]:
    """Return one phrase for each event, apart from an operator's request, that clears a latched verdict of this check.

    Return an empty sequence for a check that does not latch.
    """
    if check.latch is None:
        return ()
    repair = ("a reset or reboot" if check.gpu else "a reboot",) if check.latch.repair else ()
    return (*repair, *((f"{duration(check.latch.quiet)} without it",) if check.latch.quiet is not None else ()))


def place(verdict: Document) -> str:
    """Return where a verdict applies, from its response: the GPU by its index, a port by its name, "" for the node."""
    return verdict["device"] or "" if verdict["gpu"] is None else f"GPU {verdict['gpu']}"


def name(verdict: Document) -> str:
    """Return the check and the device of a verdict as text, from its response."""
    return f"{verdict['check']} of {place(verdict) or 'the node'}"
