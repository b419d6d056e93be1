"""Responses about alerts."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from gpumon.health.alerts.alert import FIRING, PENDING, RESOLVED, SEVERITIES, Alert
from gpumon.outputs.responses.base import Number, ResponseModel, timestamp
from gpumon.outputs.words import rfc3339


class AlertResponse(ResponseModel):
    """One alert."""

    rule: str
    severity: Literal[SEVERITIES]  # type: ignore[valid-type]
    state: Literal[PENDING, FIRING, RESOLVED]  # type: ignore[valid-type]
    labels: dict[str, str]
    summary: str
    description: str
    runbook_url: str
    value: Number | None
    since: str = timestamp("When it became pending.")
    firing_since: str | None = timestamp("When it began to fire.")
    resolved_at: str | None = timestamp("When it was resolved.")

    @classmethod
    def from_alert(cls, alert: Alert) -> AlertResponse:
        return cls(
            rule=alert.rule,
            severity=alert.severity,
            state=alert.state,
            labels=dict(alert.labels),
            summary=alert.summary,
            description=alert.description,
            runbook_url=alert.runbook_url,
            value=alert.value if math.isfinite(alert.value) else None,
            since=rfc3339(alert.since),
            firing_since=rfc3339(alert.firing_since),
            resolved_at=rfc3339(alert.resolved_at),
        )


class AlertsResponse(ResponseModel):
    """Alerts that are pending or firing, or were resolved recently."""

    alerts: list[AlertResponse] = Field(description="In the order of the checks.")
