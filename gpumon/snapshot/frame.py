"""Frames: how a child's messages cross the pipe. One JSON object a line, its kind under "frame"; None is left out."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from typing import Any

from gpumon.snapshot import snapshot
from gpumon.snapshot.gpu import Gpu
from gpumon.snapshot.nvlink import Nvlink
from gpumon.snapshot.snapshot import Message

SCHEMA = 1
"""Raised whenever a message changes its shape: daemon and child of different installs must not talk."""

LIMIT = 16 * 1024 * 1024
"""Longest line that a reader accepts, in bytes."""

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        snapshot.Hello,
        snapshot.PciBus,
        snapshot.DriverStatus,
        snapshot.Snapshot,
        snapshot.XidEvent,
        snapshot.TrialResult,
    )
}


class FrameError(ValueError):
    """A line that is not one of our frames."""


def encode(message: Message) -> bytes:
    """One line, with its newline."""
    frame = {"frame": type(message).__name__} | _attributes(message)
    return json.dumps(frame, separators=(",", ":"), default=_attributes).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Raises FrameError for what is not a frame of this schema."""
    try:
        values = json.loads(line)
        kind = _KINDS[values.pop("frame")]
        if kind is snapshot.Snapshot:
            return _snapshot(values)
        if kind is snapshot.PciBus:
            return snapshot.PciBus(functions=values["functions"], excluded=tuple(values["excluded"]))
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


def _seen(values: dict[str, Any]) -> snapshot.SeenGpu:
    if "gpu" in values:
        values["gpu"] = Gpu(**values["gpu"])
    values["links"] = {link: Nvlink(**one) for link, one in values.get("links", {}).items()}
    return snapshot.SeenGpu(**values)
