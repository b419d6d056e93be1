"""Frames: messages of a child process to the daemon, one JSON object per line.

The key "frame" names the type of the message. Attributes that are None are omitted. A Snapshot also omits those parts
of a GPU's reading that have not changed since the child's previous reading of this GPU; the daemon takes them from
that reading. In "gpu", null stands for a metric that has become None.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import cache
from typing import Any

from gpumon.model import snapshot
from gpumon.model.error_event import ErrorObservation
from gpumon.model.fabric import Fabric, Platform
from gpumon.model.gpu import Gpu
from gpumon.model.infiniband import InfinibandLink, InfinibandPort, Placement
from gpumon.model.mig import Mig
from gpumon.model.nvlink import C2cLink, Nvlink, NvlinkPeer
from gpumon.model.snapshot import ChildMessage

SCHEMA = 10
"""Version of the messages. Increase it with each change of a message, so that daemons and children of different
versions do not exchange messages.
"""

LIMIT = 16 * 1024 * 1024
"""Maximum length of a line in bytes."""

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        snapshot.Hello,
        snapshot.Logged,
        snapshot.PciBus,
        snapshot.DriverStatus,
        snapshot.Snapshot,
        ErrorObservation,
        snapshot.TrialResult,
        snapshot.HostSnapshot,
    )
}


class FrameError(ValueError):
    """Raised for a line that cannot be decoded as a frame of this schema version."""


class Encoder:
    """Encodes the messages that one child sends through its pipe.

    The encoder keeps the last reading of each GPU, so that it can omit the sections that did not change.
    """

    def __init__(self) -> None:
        self._sent: dict[str, snapshot.GpuReading] = {}
        """The last reading of each GPU that was sent, by bus id."""

    def encode(self, message: ChildMessage) -> bytes:
        """Return the message as one line with its newline.

        For a GPU in a Snapshot, the line omits the sections, and the metrics in "gpu", that have not changed since the
        previous Snapshot with this GPU.
        """
        values = {"frame": type(message).__name__} | _attributes(message)
        if isinstance(message, snapshot.Snapshot):
            values["gpus"] = [self._changes(reading) for reading in message.gpus]
        return json.dumps(values, separators=(",", ":"), default=_attributes).encode() + b"\n"

    def _changes(self, reading: snapshot.GpuReading) -> dict[str, Any]:
        """Return a GPU's reading as a JSON object, without the sections that equal those of its previous reading.

        "gpu" has only changed attributes. "same" lists the omitted sections. The first reading of a GPU is complete.
        """
        values, before = _attributes(reading), self._sent.get(reading.bus_id)
        self._sent[reading.bus_id] = reading
        if before is None:
            return values
        same = [name for name in _PARTS if name in values and values[name] == getattr(before, name)]
        for name in same:
            del values[name]
        if reading.gpu is not None and before.gpu is not None:
            values["gpu"] = {
                name: after
                for name in _names(Gpu)
                if (after := getattr(reading.gpu, name)) != getattr(before.gpu, name)
            }
        return values | {"same": same}


class Decoder:
    """Decodes the lines that the daemon receives from one child.

    The decoder keeps the last reading of each GPU, so that it can fill in the sections that were omitted as unchanged.
    """

    def __init__(self) -> None:
        self._received: dict[str, snapshot.GpuReading] = {}

    def decode(self, line: bytes) -> ChildMessage:
        """Return the message in this line. Raise FrameError if the line is not a frame of this schema version."""
        try:
            values = json.loads(line)
            kind = _KINDS[values.pop("frame")]
            if kind is snapshot.Snapshot:
                return self._snapshot(values)
            if kind is snapshot.HostSnapshot:
                return _links(values)
            return kind(**_with_tuples(values))  # type: ignore[no-any-return]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FrameError(f"not a frame: {line[:200]!r} ({error})") from error

    def _snapshot(self, values: dict[str, Any]) -> snapshot.Snapshot:
        values["gpus"] = [self._reading(gpu) for gpu in values["gpus"]]
        return snapshot.Snapshot(**_with_tuples(values))

    def _reading(self, values: dict[str, Any]) -> snapshot.GpuReading:
        before = self._received[values["bus_id"]] if "same" in values else None
        same = values.pop("same", ())
        rows = values.get("gpu")
        for name in values.keys() & _PARTS.keys():
            values[name] = _PARTS[name](values[name])
        values |= {name: getattr(before, name) for name in same}
        if rows is not None:
            values["gpu"] = _gpu(None if before is None else before.gpu, rows)
        reading = self._received[values["bus_id"]] = snapshot.GpuReading(**values)
        return reading


def encode(message: ChildMessage) -> bytes:
    """Return the message as one line with its newline. A Snapshot in it has all readings, changed or not."""
    return Encoder().encode(message)


def decode(line: bytes) -> ChildMessage:
    """Return the message in a complete line, as from `encode`. Raise FrameError for any other line.

    A Snapshot in which an Encoder omitted unchanged readings is not complete: only the child's Decoder can decode it.
    """
    return Decoder().decode(line)


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind))


def _attributes(value: Any) -> dict[str, Any]:
    pairs = ((name, getattr(value, name)) for name in _names(value.__class__))
    return {name: attribute for name, attribute in pairs if attribute is not None}


def _gpu(before: Gpu | None, rows: dict[str, Any]) -> Gpu:
    if before is None:
        return Gpu(**rows)
    return dataclasses.replace(before, **rows) if rows else before


def _by_link(table: type[Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda values: {link: table(**rows) for link, rows in values.items()}


_PARTS: dict[str, Callable[[Any], Any]] = {
    "links": _by_link(Nvlink),
    "peers": _by_link(NvlinkPeer),
    "c2c_links": _by_link(C2cLink),
    "fabric": lambda rows: Fabric(**rows),
    "platform": lambda rows: Platform(**rows),
    "migs": lambda migs: tuple(snapshot.MigReading(**mig | {"mig": Mig(**mig["mig"])}) for mig in migs),
    "peer_access": lambda access: access,
    "link_bytes": lambda moved: moved,
    "pids": tuple,
}
"""Sections of a GpuReading that are sent only if they changed: the function that decodes each, by attribute name."""


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes with a tuple for each list, because JSON has no tuples."""
    return values | {name: tuple(value) for name, value in values.items() if isinstance(value, list)}


def _links(values: dict[str, Any]) -> snapshot.HostSnapshot:
    values["ports"] = [_port(port) for port in values["ports"]]
    if "stuck" in values:
        values["stuck"] = [snapshot.StuckProcess(**_with_tuples(process)) for process in values["stuck"]]
    return snapshot.HostSnapshot(**_with_tuples(values))


def _port(values: dict[str, Any]) -> snapshot.PortReading:
    parts = {
        "link": InfinibandLink(**values["link"]),
        "counts": InfinibandPort(**values["counts"]),
        "placement": Placement(**_with_tuples(values["placement"])),
    }
    return snapshot.PortReading(**values | parts)
