"""A gRPC server with the interface of the kubelet's PodResources v1."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from grpc_servers import grpc_server, message_class

MESSAGES = {
    "Device": {1: ("resource_name", "string"), 2: ("device_ids", "string*"), 3: ("topology", "v1.Topology")},
    "Topology": {1: ("nodes", "v1.Numa*")},
    "Numa": {1: ("ID", "int64")},
    "Memory": {1: ("memory_type", "string"), 2: ("size", "int64"), 3: ("topology", "v1.Topology")},
    "Cdi": {1: ("name", "string")},
    "ClaimResource": {
        1: ("cdi_devices", "v1.Cdi*"),
        2: ("driver_name", "string"),
        3: ("pool_name", "string"),
        4: ("device_name", "string"),
        5: ("share_id", "string"),
    },
    "Dynamic": {
        2: ("claim_name", "string"),
        3: ("claim_namespace", "string"),
        4: ("claim_resources", "v1.ClaimResource*"),
    },
    "Container": {
        1: ("name", "string"),
        2: ("devices", "v1.Device*"),
        3: ("cpu_ids", "int64*"),
        4: ("memory", "v1.Memory*"),
        5: ("dynamic_resources", "v1.Dynamic*"),
        900: ("later_number", "fixed32"),
        901: ("later_ratio", "double"),
        902: ("later_flag", "bool"),
        903: ("later_data", "bytes"),
    },
    "Pod": {
        1: ("name", "string"),
        2: ("namespace", "string"),
        3: ("containers", "v1.Container*"),
        4: ("cpu_ids", "int64*"),
        5: ("memory", "v1.Memory*"),
    },
    "Response": {1: ("pod_resources", "v1.Pod*")},
}
"""Fields of api.proto, under shorter names, and fields that a later version could have."""
METHOD = "/v1.PodResourcesLister/List"
RESPONSE = message_class("v1", MESSAGES, "Response")


def answer(*pods: Any) -> bytes:
    """Return the encoded answer with these pods, each as nested dictionaries."""
    return bytes(RESPONSE(pod_resources=pods).SerializeToString())


def pod(name: str, *containers: dict[str, Any], namespace: str = "training") -> dict[str, Any]:
    return {"name": name, "namespace": namespace, "containers": containers}


def container(*ids: str, name: str = "main", resource: str = "nvidia.com/gpu", **fields: Any) -> dict[str, Any]:
    """Return a container with these devices of one device plugin."""
    devices = [{"resource_name": resource, "device_ids": ids, "topology": {"nodes": [{"ID": 1}]}}] if ids else []
    return {"name": name, "devices": devices, **fields}


class Kubelet(grpc.GenericRpcHandler):  # type: ignore[misc] # grpcio has no types
    """Its answer, the status with which it refuses instead, and the number of calls."""

    def __init__(self, answer: bytes = b"") -> None:
        self.answer = answer
        self.refusal: grpc.StatusCode | None = None
        self.calls = 0

    def service(self, handler_call_details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._list) if handler_call_details.method == METHOD else None

    def _list(self, request: bytes, context: Any) -> bytes:
        assert request == b""
        self.calls += 1
        if self.refusal is not None:
            context.abort(self.refusal, "too many\nrequests")
        return self.answer


@contextlib.contextmanager
def serving(socket: Path, answer: bytes) -> Iterator[Kubelet]:
    """Serve like a kubelet, which creates its socket under another name."""
    kubelet = Kubelet(answer)
    created = socket.with_name("created.sock")
    with grpc_server(created, kubelet):
        os.replace(created, socket)  # noqa: PTH105 - atomic, as a kubelet does it
        yield kubelet
