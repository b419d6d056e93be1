"""gRPC servers on unix sockets, and classes of messages that protobuf makes from tables of fields."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

FIELD = descriptor_pb2.FieldDescriptorProto
TYPES = {
    "string": FIELD.TYPE_STRING,
    "bytes": FIELD.TYPE_BYTES,
    "bool": FIELD.TYPE_BOOL,
    "int": FIELD.TYPE_UINT32,
    "int64": FIELD.TYPE_INT64,
    "fixed32": FIELD.TYPE_FIXED32,
    "double": FIELD.TYPE_DOUBLE,
}
Messages = Mapping[str, Mapping[int, tuple[str, str]]]
"""Name and type of each field by its number, by name of the message; * is repeated."""


def message_class(package: str, messages: Messages, name: str) -> Any:
    """Return the class of one of the messages. A field of another type than TYPES names a message with its package."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    file.dependency.append(timestamp_pb2.DESCRIPTOR.name)
    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)
        for number, (field, kind) in fields.items():
            label = FIELD.LABEL_REPEATED if kind.endswith("*") else FIELD.LABEL_OPTIONAL
            word = kind.rstrip("*")
            if word in TYPES:
                message.field.add(name=field, number=number, label=label, type=TYPES[word])
            else:
                message.field.add(name=field, number=number, label=label, type_name=f".{word}", type=FIELD.TYPE_MESSAGE)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))


@contextlib.contextmanager
def grpc_server(socket: Path, handler: Any) -> Iterator[None]:
    """Serve on a unix socket."""
    server = grpc.server(ThreadPoolExecutor(max_workers=2), handlers=(handler,))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield
    finally:
        server.stop(grace=None).wait()
