"""Responses about alerts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from gpumon.health.alert import FIRING, PENDING, RESOLVED
from gpumon.health.alert_texts import SEVERITIES
from gpumon.health.check_row import Paging
from gpumon.outputs.responses.base import ResponseModel, Timestamp, timestamp


class AlertResponse(ResponseModel):
    """One alert of this node: its rule, labels, state and texts."""

    rule: str
    severity: Literal[SEVERITIES]  # type: ignore[valid-type]
    page: Paging = Field(description="When the alert reaches a person.")
    state: Literal[PENDING, FIRING, RESOLVED]  # type: ignore[valid-type]
    labels: Annotated[dict[str, str], BeforeValidator(dict)]
    summary: str
    description: str
    action: str
    runbook_url: str
    since: Timestamp = timestamp("When the check became active.")
    firing_since: Timestamp | None = timestamp("When it began to fire.")
    resolved_at: Timestamp | None = timestamp("When it was resolved.")


class AlertsResponse(ResponseModel):
    """Alerts that are pending or firing, or were resolved recently."""

    alerts: list[AlertResponse] = Field(description="Firing and pending alerts first.")
