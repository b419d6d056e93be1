"""Responses about alerts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpumon.health.alert import FIRING, PENDING, RESOLVED, Alert
from gpumon.health.alert_rules import SEVERITIES
from gpumon.health.check_row import Paging
from gpumon.outputs.formatting import rfc3339
from gpumon.outputs.responses.base import ResponseModel, timestamp


class AlertResponse(ResponseModel):
    """One alert of this node: its rule, labels, state and texts."""

    rule: str
    severity: Literal[SEVERITIES]  # type: ignore[valid-type]
    page: Paging = Field(description="When the alert reaches a person.")
    state: Literal[PENDING, FIRING, RESOLVED]  # type: ignore[valid-type]
    labels: dict[str, str]
    summary: str
    description: str
    action: str
    runbook_url: str
    since: str = timestamp("When the check became active.")
    firing_since: str | None = timestamp("When it began to fire.")
    resolved_at: str | None = timestamp("When it was resolved.")

    @classmethod
    def from_alert(cls, alert: Alert) -> AlertResponse:
        return cls(
            rule=alert.rule,
            severity=alert.severity,
            page=Paging(alert.page),
            state=alert.state,
            labels=dict(alert.labels),
            summary=alert.summary,
            description=alert.description,
            action=alert.action,
            runbook_url=alert.runbook_url,
            since=rfc3339(alert.since),
            firing_since=rfc3339(alert.firing_since),
            resolved_at=rfc3339(alert.resolved_at),
        )


class AlertsResponse(ResponseModel):
    """Alerts that are pending or firing, or were resolved recently."""

    alerts: list[AlertResponse] = Field(description="Firing and pending alerts first.")
