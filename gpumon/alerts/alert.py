"""An alert: one instance of a rule, for one set of labels."""

from __future__ import annotations

from dataclasses import dataclass

from gpumon.snapshot.reading import Labels

SEVERITIES = ("critical", "warning", "info")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Frozen; each evaluation makes a new tuple of them."""

    rule: str
    severity: str
    state: str
    """pending, firing or resolved (kept for a while, so that a person sees what has just gone)."""
    labels: Labels
    summary: str
    description: str
    runbook_url: str
    value: float
    active_at: float
    """Boot clock: when the expression became true."""
    since: float
    """Wall time of the same, for display."""
    firing_since: float | None = None
    """Wall time."""
    resolved_at: float | None = None
    """Wall time."""
    last_true_at: float = 0.0
    """Boot clock, for keep_firing_for."""
