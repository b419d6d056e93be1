"""Frames: how a child's messages cross the pipe. One JSON object a line, its kind under "frame"; None is left out."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from typing import Any

from gpumon.model import snapshot
from gpumon.model.fabric import Fabric, Platform
from gpumon.model.gpu import Gpu
from gpumon.model.infiniband import InfinibandLink, InfinibandPort
from gpumon.model.mig import Mig
from gpumon.model.nvlink import C2cLink, Nvlink, NvlinkPeer
from gpumon.model.snapshot import ChildMessage

SCHEMA = 6
"""Raised whenever a message changes its shape: daemon and child of different installs must not talk."""

LIMIT = 16 * 1024 * 1024
"""Longest line that a reader accepts, in bytes."""

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        snapshot.Hello,
        snapshot.Logged,
        snapshot.PciBus,
        snapshot.DriverStatus,
        snapshot.Snapshot,
        snapshot.XidEvent,
        snapshot.TrialResult,
        snapshot.LinksSnapshot,
    )
}


class FrameError(ValueError):
    """A line that is not one of our frames."""


def encode(message: ChildMessage) -> bytes:
    """One line, with its newline."""
    frame = {"frame": type(message).__name__} | _attributes(message)
    return json.dumps(frame, separators=(",", ":"), default=_attributes).encode() + b"\n"


def decode(line: bytes) -> ChildMessage:
    """Raises FrameError for what is not a frame of this schema."""
    try:
        values = json.loads(line)
        kind = _KINDS[values.pop("frame")]
        if kind is snapshot.Snapshot:
            return _snapshot(values)
        if kind is snapshot.LinksSnapshot:
            return _links(values)
        if kind is snapshot.PciBus:
            return snapshot.PciBus(**values | {"excluded": tuple(values["excluded"])})
        return kind(**values)  # type: ignore[no-any-return]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FrameError(f"not a frame: {line[:200]!r} ({error})") from error


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind))


def _attributes(one: Any) -> dict[str, Any]:
    pairs = ((name, getattr(one, name)) for name in _names(one.__class__))
    return {name: value for name, value in pairs if value is not None}


def _snapshot(values: dict[str, Any]) -> snapshot.Snapshot:
    values["gpus"] = tuple(_seen(one) for one in values["gpus"])
    values["denied"], values["present"] = tuple(values["denied"]), tuple(values["present"])
    return snapshot.Snapshot(**values)


_PARTS: dict[str, type[Any]] = {"gpu": Gpu, "fabric": Fabric, "platform": Platform}
_LINK_PARTS: dict[str, type[Any]] = {"links": Nvlink, "peers": NvlinkPeer, "c2c_links": C2cLink}


def _seen(values: dict[str, Any]) -> snapshot.GpuReading:
    for name, table in _PARTS.items():
        if name in values:
            values[name] = table(**values[name])
    for name, table in _LINK_PARTS.items():
        values[name] = {link: table(**one) for link, one in values.get(name, {}).items()}
    if "pids" in values:
        values["pids"] = tuple(values["pids"])
    values["migs"] = tuple(snapshot.MigReading(**one | {"mig": Mig(**one["mig"])}) for one in values.get("migs", ()))
    return snapshot.GpuReading(**values)


def _links(values: dict[str, Any]) -> snapshot.LinksSnapshot:
    values |= {"ports": tuple(_port(one) for one in values["ports"])}
    values |= {name: tuple(values[name]) for name in ("denied", "ended")}
    if "schedulers" in values:
        values["schedulers"] = tuple(values["schedulers"])
    if "stuck" in values:
        values["stuck"] = tuple(
            snapshot.StuckProcess(since=one["since"], gpus=tuple(one["gpus"])) for one in values["stuck"]
        )
    return snapshot.LinksSnapshot(**values)


def _port(values: dict[str, Any]) -> snapshot.PortReading:
    parts = {"link": InfinibandLink(**values["link"]), "counts": InfinibandPort(**values["counts"])}
    return snapshot.PortReading(**values | parts)
