"""Sends alerts to NVSentinel's platform connector on this node with the gRPC method HealthEventOccurredV1."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from gpumon.health.verdict import ACTIONS, Action
from gpumon.model.notified_alert import SentAlert
from gpumon.services.delivery_error import DeliveryError

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
NEVER_FATAL = frozenset({"agent", "job"})
"""Classes of alerts that do not concern the hardware. Because of them NVSentinel must not take a node out of service.
"""
MAX_TEXT = 1_000
MAX_READ_BYTES = 65_536
_INVALID_ARGUMENT = "3"
"""The gRPC status with which NVSentinel rejects the event itself, which is then not sent again."""


@dataclass(frozen=True, slots=True)
class NvSentinel:
    """Sends an event to NVSentinel when an alert fires (unhealthy) and when it is resolved (healthy)."""

    socket: Path
    node: str
    strategy: str
    timeout: float
    name: str = NAME
    url: None = None

    def deliver(self, alert: SentAlert, *, ended: float | None) -> None:
        event = health_event(alert, node=self.node, strategy=STRATEGIES[self.strategy], ended=ended)
        try:
            answer = call(self.socket, _field(1, 1) + _field(2, event), self.timeout)
        except ImportError as error:
            remedy = "install gpumon[nvsentinel], or the package h2 beside gpumon"
            raise DeliveryError(f"NVSentinel needs a package that is missing ({error}): {remedy}") from error
        except OSError as error:
            raise DeliveryError(f"{self.socket}: {error}") from error
        status = answer.get("grpc-status")
        if status != "0":
            text = unquote(answer.get("grpc-message", f"HTTP status {answer.get(':status')}"))
            refused = status == _INVALID_ARGUMENT
            raise DeliveryError(f"{self.socket}: gRPC status {status}: {text}", refused=refused)


def health_event(alert: SentAlert, *, node: str, strategy: int, ended: float | None) -> bytes:
    """Return an encoded HealthEvent.

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
        *((10, _field(1, kind) + _field(2, value)) for kind, value in _entities(labels)),
        *((11, _field(1, key) + _field(2, value)) for key, value in metadata.items() if value),
        (12, _field(1, int(seconds)) + _field(2, int(seconds % 1 * 1e9))),
        (13, node),
        (16, strategy),
    )
    return b"".join(_field(number, value) for number, value in fields)


def _entities(labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the type and the name of each affected entity (GPU, NIC or port), as NVSentinel's own monitors do."""
    for kind, label in (("GPU", "gpu"), ("GPU_UUID", "uuid"), ("NIC", "device"), ("NICPort", "port")):
        if label in labels:
            yield kind, labels[label]


def _field(number: int, value: str | int | bytes) -> bytes:
    """Return one protobuf field: an integer (empty if it is 0), a text (truncated to MAX_TEXT) or a message."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value) if value else b""
    data = value[:MAX_TEXT].encode(errors="replace") if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def call(path: Path, message: bytes, seconds: float) -> Mapping[str, str]:
    """Call METHOD with an encoded message of at most 16,000 bytes, and return the headers and trailers of the answer.

    Raise OSError if the socket fails, gives no answer in `seconds` or does not speak HTTP/2; ImportError without h2.
    """
    from h2.connection import H2Connection  # noqa: PLC0415 - an optional dependency, which takes 5 MB of memory
    from h2.exceptions import H2Error  # noqa: PLC0415

    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": METHOD,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
        "grpc-timeout": f"{seconds * 1000:.0f}m",
    }
    client = H2Connection()
    try:
        client.initiate_connection()
        client.send_headers(1, headers.items())
        client.send_data(1, struct.pack(">BI", 0, len(message)) + message, end_stream=True)
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in _exchange(client, path, seconds)}
    except H2Error as error:
        raise ConnectionError(f"the server does not speak HTTP/2: {error!r}") from error


def _exchange(client: Any, path: Path, seconds: float) -> Iterator[tuple[bytes, bytes]]:
    """Send what `client` has queued, and yield the headers and trailers of the answer."""
    from h2 import events  # noqa: PLC0415 - see call

    deadline = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds)
        connection.connect(str(path))
        ended = False
        while not ended:
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError("timed out")
            connection.settimeout(left)
            connection.sendall(client.data_to_send())
            data = connection.recv(MAX_READ_BYTES)
            if not data:
                raise ConnectionError("the server closed the connection without an answer")
            for event in client.receive_data(data):
                if isinstance(event, (events.StreamReset, events.ConnectionTerminated)):
                    raise ConnectionError(f"the server ended the call with HTTP/2 error {event.error_code}")
                if isinstance(event, (events.ResponseReceived, events.TrailersReceived)):
                    yield from event.headers
                ended = ended or isinstance(event, events.StreamEnded)
