"""Decides which verdicts an operator's request to clear verdicts clears. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gpumon.health.node_health import Health, ends_with_cause
from gpumon.health.table import BY_NAME
from gpumon.health.verdict import NODE, Verdict

STILL_ACTIVE = "This fault is still active and cannot be cleared."


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearRequest:
    """An operator's request to clear all verdicts of this check and device. None as check or device matches any."""

    check: str | None = None
    device: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearResult:
    """The result of a ClearRequest."""

    cleared: tuple[Verdict, ...] = ()
    refused: tuple[tuple[Verdict, str], ...] = ()
    """Verdicts that cannot be cleared, each with the reason."""
    stored: bool = True
    """False if the store could not be written. The clearing is stored when the store can be written again."""
    error: str = ""
    """Why the request was refused as a whole; empty if it was processed."""


def requested_clearance(request: ClearRequest, health: Health, here: Collection[str]) -> ClearResult:
    """Return the verdicts that the request clears, and those that it names but cannot clear.

    A verdict that a cleared one inhibits is cleared too if possible, or it would page. `here`: uuids of the GPUs.
    """
    if not health.evaluated:
        return ClearResult(error="The health checks have not been evaluated yet.")
    matches = [
        (verdict, _refusal_reason(verdict, here, named=request.check is not None))
        for verdict in health.verdicts
        if request.check in {None, verdict.check} and request.device in {None, verdict.device}
    ]
    clearable = [verdict for verdict, why_not in matches if not why_not]
    consequences = [other for verdict in clearable for other in health.consequences(verdict)]
    consequences = [other for other in consequences if ends_with_cause(other) or not _refusal_reason(other, here)]
    cleared = {verdict.key: verdict for verdict in (*clearable, *consequences)}
    return ClearResult(cleared=tuple(cleared.values()), refused=tuple(match for match in matches if match[1]))


def _refusal_reason(verdict: Verdict, here: Collection[str], *, named: bool = False) -> str:
    """Return why a verdict cannot be cleared. `named`: whether the request names its check."""
    check = BY_NAME.get(verdict.check)
    if check is not None and check.acceptable and verdict.inhibited_by is None:
        return "" if named else f"`gpumon clear {verdict.check}` would accept the measured value as the new baseline."
    if verdict.active:
        return STILL_ACTIVE
    if check is not None and check.latch is None and verdict.ok_seconds and verdict.device in {NODE, *here}:
        return "It is not latched: it is cleared when the check has passed for a while."
    return ""
