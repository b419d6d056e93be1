"""Verdicts as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from gpumon.health.check import Check
from gpumon.health.table import BY_NAME
from gpumon.health.verdict import Verdict
from gpumon.outputs.responses.base import Document
from gpumon.outputs.words import duration


def title(one: Verdict) -> str:
    """What is wrong when this check speaks."""
    check = BY_NAME.get(one.check)
    return check.help.rstrip(".") if check else one.check


def ways_out(check: Check) -> Sequence[str]:
    """What ends a latched verdict of this check, but for an acknowledgement."""
    if check.latch is None:
        return ()
    repair = ("a reset or reboot" if check.gpu else "a reboot",) if check.latch.repair else ()
    return (*repair, *((f"{duration(check.latch.quiet)} without it",) if check.latch.quiet is not None else ()))


def place(verdict: Document) -> str:
    """The GPU by its index, a port by its name; nothing for the node."""
    return verdict["device"] or "" if verdict["gpu"] is None else f"GPU {verdict['gpu']}"


def name(verdict: Document) -> str:
    """The check, and where."""
    return f"{verdict['check']} of {place(verdict) or 'the node'}"
