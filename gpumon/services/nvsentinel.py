"""Messages to NVSentinel, which manages faults of a Kubernetes cluster: alerts as health events, in protobuf."""

from __future__ import annotations

from collections.abc import Mapping

from gpumon.health.verdict import ACTIONS, Action
from gpumon.model.records import SentAlert

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
