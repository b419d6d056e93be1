"""A gRPC server with the interface of NVSentinel's platform connector, which records the events that it receives."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from agents import eventually
from grpc_servers import grpc_server, message_class

MESSAGES = {
    "Entity": {1: ("entityType", "string"), 2: ("entityValue", "string")},
    "Pair": {1: ("key", "string"), 2: ("value", "string")},
    "HealthEvent": {
        1: ("version", "int"),
        2: ("agent", "string"),
        3: ("componentClass", "string"),
        4: ("checkName", "string"),
        5: ("isFatal", "bool"),
        6: ("isHealthy", "bool"),
        7: ("message", "string"),
        8: ("recommendedAction", "int"),
        9: ("errorCode", "string*"),
        10: ("entitiesImpacted", "datamodels.Entity*"),
        11: ("metadata", "datamodels.Pair*"),
        12: ("generatedTimestamp", "google.protobuf.Timestamp"),
        13: ("nodeName", "string"),
        16: ("processingStrategy", "int"),
    },
    "HealthEvents": {1: ("version", "int"), 2: ("events", "datamodels.HealthEvent*")},
}
"""Fields of health_event.proto. An enum and a map have the same encoding as these types."""
METHOD = "/datamodels.PlatformConnector/HealthEventOccurredV1"


class PlatformConnector(grpc.GenericRpcHandler):  # type: ignore[misc] # grpcio has no types
    """The events received so far, and the gRPC status with which the next ones are refused."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.refusals: list[grpc.StatusCode] = []
        self._kind = message_class("datamodels", MESSAGES, "HealthEvents")
        self._changed = threading.Condition()

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method != METHOD:
            return None
        return grpc.unary_unary_rpc_method_handler(
            self._receive, request_deserializer=self._kind.FromString, response_serializer=lambda empty: empty
        )

    def _receive(self, request: Any, context: Any) -> bytes:
        with self._changed:
            assert request.version == 1
            if self.refusals:
                context.abort(self.refusals.pop(0), "not now: 100 %")
            self.events.extend(request.events)
        return b""

    def wait_for(self, count: int) -> list[Any]:
        """Return the events as soon as there are `count`."""
        return eventually(lambda: self.events if len(self.events) >= count else None)


@contextlib.contextmanager
def platform_connector(socket: Path) -> Iterator[PlatformConnector]:
    """Serve on a unix socket."""
    connector = PlatformConnector()
    with grpc_server(socket, connector):
        yield connector
