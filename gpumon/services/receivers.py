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
from gpumon.health.verdict import ACTIONS, Action
from gpumon.model.records import SentAlert
from gpumon.outputs.formatting import rfc3339

NAME = "nvsentinel"
METHOD = "/datamodels.PlatformConnector/HealthEventOccurredV1"
STRATEGIES = {"execute_remediation": 1, "store_only": 2}
"""Number in NVSentinel's enum ProcessingStrategy, by value of the setting nvsentinel_strategy. Without a number,
NVSentinel uses EXECUTE_REMEDIATION.
"""
NONE = 0
RECOMMENDED: Mapping[str, int] = {
    ACTIONS[Action.RESTART]: 39,
    ACTIONS[Action.RESET]: 2,
    ACTIONS[Action.REBOOT]: 24,
    ACTIONS[Action.FIX]: 5,
    ACTIONS[Action.INSPECT]: 5,
    ACTIONS[Action.REPLACE]: 5,
}
"""Number in NVSentinel's enum RecommendedAction, by the action with which the text of an alert begins:
RESTART_APP (39), COMPONENT_RESET (2), RESTART_BM (24) or CONTACT_SUPPORT (5). Any other text, such as one that begins
with "If it recurs", is NONE (0).
"""
ENTITIES = {"GPU": "gpu", "GPU_UUID": "uuid", "NIC": "device", "NICPort": "port"}
"""Label with the name of an affected entity, by the type that NVSentinel's own monitors give it."""
NEVER_FATAL = frozenset({"agent", "job"})
"""Classes of alerts that do not concern the hardware. Because of them NVSentinel must not take a node out of service.
"""
MAX_TEXT = 1_000


def health_events(alert: SentAlert, *, node: str, strategy: str, ended: float | None) -> bytes:
    """Return encoded HealthEvents with one event: unhealthy when the alert fires, healthy when it is resolved.

    The check name in it is the name of the alert, because the warning and the failure of one check are two alerts,
    which end independently.
    """
    labels = dict(alert.labels)
    critical = labels.get("severity") == "critical" and labels.get("class") not in NEVER_FATAL
    resolved, seconds = ended is not None, alert.since if ended is None else ended
    metadata = {"action": alert.action, "check": labels.get("check", ""), "runbook_url": alert.runbook_url}
    fields: tuple[tuple[int, str | int | bytes], ...] = (
        (1, 1),
        (2, "gpumon"),
        (3, "GPU" if "uuid" in labels else "NIC" if "device" in labels else "Node"),
        (4, alert.name),
        (5, critical and not resolved),
        (6, resolved),
        (7, f"resolved: {alert.summary}" if resolved else alert.description or alert.summary),
        (8, NONE if resolved else RECOMMENDED.get(alert.action.partition(".")[0].lower(), NONE)),
        *((10, _field(1, kind) + _field(2, labels[name])) for kind, name in ENTITIES.items() if name in labels),
        *((11, _field(1, key) + _field(2, value)) for key, value in metadata.items() if value),
        (12, _field(1, int(seconds)) + _field(2, int(seconds % 1 * 1e9))),
        (13, node),
        (16, STRATEGIES[strategy]),
    )
    event = b"".join(_field(number, value) for number, value in fields)
    return _field(1, 1) + _field(2, event)


def _field(number: int, value: str | int | bytes) -> bytes:
    """Return one protobuf field: an integer (empty if it is 0), a text (truncated to MAX_TEXT) or a message."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value) if value else b""
    data = value[:MAX_TEXT].encode(errors="replace") if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


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
    name: str = NAME
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
