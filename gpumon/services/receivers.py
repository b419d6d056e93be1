"""Receivers of alerts: Alertmanager, a webhook, the services that Apprise knows, and NVSentinel on this node.

A receiver makes the orders with which a child process (delivery.py) delivers a message.
"""

from __future__ import annotations

import base64
import os
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpumon.config.notifications_section import NotificationsSection
from gpumon.model.records import SentAlert
from gpumon.outputs.formatting import rfc3339
from gpumon.services.nvsentinel import METHOD, health_events

Orders = Mapping[str, Any]
"""What to deliver and to whom: `kind`, and the arguments of the function of delivery.py for this kind."""
NOTIFY_TYPES = {"critical": "failure", "warning": "warning"}
"""Apprise's type of a message, which many services show as a color, by severity of a firing alert; else `info`."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A configured URL or token: its value, or the path of a file that is read for each message."""

    value: str | None
    file: Path | None


@dataclass(frozen=True, slots=True)
class Webhook:
    """Gets alerts as CloudEvents 1.0, in structured JSON. `source` names the agent."""

    url: Secret
    token: Secret
    source: str
    name: str = "webhook"

    def orders(self, alert: SentAlert, *, ended: float | None) -> Orders:
        state = "firing" if ended is None else "resolved"
        event = {
            "specversion": "1.0",
            # The same when the message is sent again.
            "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{alert.key} {alert.since} {ended is not None}")),
            "source": self.source,
            "type": f"io.gpumon.alert.{state}",
            "subject": alert.name,
            "time": rfc3339(alert.since if ended is None else ended),
            "datacontenttype": "application/json",
            "data": {"state": state, "labels": dict(alert.labels), "annotations": alert.annotations},
        }
        return _post(self.url, self.token, event, "application/cloudevents+json")


@dataclass(frozen=True, slots=True)
class AppriseService:
    """Gets alerts as texts, through the service of an Apprise URL, such as Slack, e-mail or PagerDuty."""

    url: Secret
    name: str

    def orders(self, alert: SentAlert, *, ended: float | None) -> Orders:
        severity = dict(alert.labels)["severity"]
        cluster = "".join(f"{value} " for name, value in alert.labels if name == "cluster")
        lines = [alert.description, f"Do: {alert.action}"]
        if alert.serial:
            lines.append(f"Serial number: {alert.serial}")
        if alert.runbook_url:
            lines.append(f"Runbook: {alert.runbook_url}")
        title = f"{'FIRING' if ended is None else 'RESOLVED'}: {cluster}{alert.summary}"
        return {
            "kind": "apprise",
            "url": asdict(self.url),
            "title": " ".join(title.split()),
            "body": "\n".join(lines) if ended is None else f"{alert.name} is resolved.",
            "notify_type": NOTIFY_TYPES.get(severity, "info") if ended is None else "success",
        }


@dataclass(frozen=True, slots=True)
class NvSentinel:
    """Gets an event when an alert fires (unhealthy) and when it is resolved (healthy)."""

    socket: Path
    node: str
    strategy: str
    name: str = "nvsentinel"
    url: None = None

    def orders(self, alert: SentAlert, *, ended: float | None) -> Orders:
        message = health_events(alert, node=self.node, strategy=self.strategy, ended=ended)
        return {
            "kind": "grpc",
            "path": str(self.socket),
            "method": METHOD,
            "message": base64.b64encode(message).decode(),
        }


MessageReceiver = Webhook | AppriseService | NvSentinel
"""Gets one message when an alert fires, and one when it is resolved."""


@dataclass(frozen=True, slots=True)
class Alertmanager:
    """Gets alerts by its API v2. Firing alerts must be sent repeatedly, as Prometheus does."""

    url: str
    token: Secret

    @property
    def name(self) -> str:
        return f"alertmanager {urlsplit(self.url).netloc.rpartition('@')[2]}"

    def orders(self, alerts: Iterable[tuple[SentAlert, float]]) -> Orders:
        """Return the orders for alerts, each with the Unix time at which it is resolved unless it is sent again."""
        body = [
            {
                "labels": dict(alert.labels),
                "annotations": alert.annotations,
                "startsAt": rfc3339(alert.since),
                "endsAt": rfc3339(ends),
            }
            for alert, ends in alerts
        ]
        return _post(Secret(f"{self.url.rstrip('/')}/api/v2/alerts", None), self.token, body, "application/json")


def message_receivers(section: NotificationsSection, source: str) -> list[MessageReceiver]:
    """Return the configured receivers that get a message for each alert. `source` names the agent in CloudEvents."""
    receivers: list[MessageReceiver] = []
    if section.webhook_url is not None or section.webhook_url_file is not None:
        token = Secret(None, section.webhook_token_file)
        receivers.append(Webhook(Secret(section.webhook_url, section.webhook_url_file), token, source))
    uses = Counter[str]()
    for url in section.apprise_urls:
        # The name has the scheme, or the name of the file that has the URL; never a secret.
        secret = Secret(None, Path(url)) if url.startswith("/") else Secret(url, None)
        name = re.sub(r"[^\w.-]", "_", secret.file.name if secret.file else url.partition("://")[0])
        uses[name] += 1
        receivers.append(AppriseService(secret, f"apprise {name}" + (f" {uses[name]}" if uses[name] > 1 else "")))
    if section.nvsentinel_socket is not None:
        node = section.nvsentinel_node or os.uname().nodename.lower()
        receivers.append(NvSentinel(section.nvsentinel_socket, node, section.nvsentinel_strategy))
    return receivers


def alertmanagers(section: NotificationsSection) -> list[Alertmanager]:
    """Return the configured Alertmanagers."""
    return [Alertmanager(url, Secret(None, section.alertmanager_token_file)) for url in section.alertmanagers]


def example(labels: Mapping[str, Any]) -> SentAlert:
    """Return the alert that `gpumon notify test` sends. `labels`: the configured `notifications.labels`.

    Unless `labels` has another `page`, it has page=day, because an alert with page=never is not sent to a person.
    """
    host = os.uname().nodename
    own = {"alertname": "GpumonTest", "class": "agent", "instance": host, "page": "day", "severity": "info", **labels}
    return SentAlert(
        labels=tuple(sorted((name, str(value)) for name, value in own.items())),
        summary=f"{own['instance']}: this is a test of notifications.",
        description=f"`gpumon notify test` was run on {host}. Nothing is wrong.",
        action="none.",
        since=0.0,
    )


def _post(url: Secret, token: Secret, body: object, content_type: str) -> Orders:
    return {"kind": "http", "url": asdict(url), "token": asdict(token), "body": body, "content_type": content_type}
