"""A firing alert as it is sent to receivers, and the record that a receiver was notified of the alert."""

from __future__ import annotations

import json
from dataclasses import dataclass

from gpumon.model.reading import Labels


@dataclass(frozen=True, slots=True, kw_only=True)
class SentAlert:
    """A firing alert with all its labels and texts, as it is sent to receivers."""

    labels: Labels
    """Labels of the alert, the same as in Prometheus, sorted by name. They identify the alert."""
    summary: str
    description: str
    action: str
    serial: str = ""
    runbook_url: str = ""
    since: float
    """Seconds since the epoch at which the alert began to fire."""

    @property
    def key(self) -> str:
        """Return the labels as text, which identifies the alert in the store."""
        return json.dumps(self.labels)

    @property
    def name(self) -> str:
        return dict(self.labels)["alertname"]

    @property
    def annotations(self) -> dict[str, str]:
        """Return the texts of the alert, by annotation name as in the Prometheus alert rules. Leave out empty texts."""
        texts = {
            "summary": self.summary,
            "description": self.description,
            "action": self.action,
            "serial": self.serial,
            "runbook_url": self.runbook_url,
        }
        return {name: text for name, text in texts.items() if text}


@dataclass(frozen=True, slots=True)
class NotifiedAlert:
    """An alert of which a receiver was or will be notified, stored until "resolved" is delivered or is refused."""

    receiver: str
    alert: SentAlert
    delivered: bool = True
    """Whether the receiver was notified that the alert fires."""
    ended: float | None = None
    """Seconds since the epoch at which the alert ended; None while it fires."""
    failing_since: float | None = None
    """Seconds since the epoch of the first attempt in an unbroken series of failed ones; None after a success."""
    refused: bool = False
    """Whether the receiver refused the message that the alert fires. It then gets no message at the end."""
