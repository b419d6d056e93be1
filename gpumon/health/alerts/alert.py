"""An alert: one instance of a rule, for one set of labels."""

from __future__ import annotations

from dataclasses import dataclass

from gpumon.model.reading import Labels

SEVERITIES = ("critical", "warning", "info")
PENDING, FIRING, RESOLVED = "pending", "firing", "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Frozen; each evaluation makes a new tuple of them."""

    rule: str
    severity: str
    state: str
    """pending, firing or resolved (kept for a while, so that a person sees what has just gone)."""
    labels: Labels
    """What the expression gave, sorted; rule and severity stand beside it."""
    summary: str
    description: str
    runbook_url: str
    value: float
    """Of the last evaluation at which the expression was true."""
    active_at: float
    """Boot clock: when the expression became true."""
    since: float
    """Wall time of the same, for display."""
    firing_since: float | None = None
    """Wall time."""
    resolved_at: float | None = None
    """Wall time."""
    quiet_since: float | None = None
    """Boot clock: first evaluation at which the expression was no longer true; None while it is."""

    @property
    def identity(self) -> Labels:
        """All labels that Prometheus would give this alert, sorted."""
        return tuple(sorted((*self.labels, ("alertname", self.rule), ("severity", self.severity))))
