"""Frames: messages of a child process to the daemon, one JSON object per line.

The key "frame" names the type of the message. Attributes that are None are omitted. A GPU's reading in a Snapshot has
only what has changed since the child's previous reading of this GPU; the daemon takes the rest from that reading.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, ClassVar, TypeVar

SCHEMA = 12
"""Version of the messages, to increase with each change of one: other versions of a child are then refused."""

LIMIT = 16 * 1024 * 1024
"""Maximum length of a line in bytes."""


T = TypeVar("T")


class FrameError(ValueError):
    """Raised for a line that cannot be decoded as a frame of this schema version."""


class Frame:
    """A message of a child, or a value in one: a frozen dataclass. A subclass registers itself by its name."""

    __slots__ = ()
    kinds: ClassVar[dict[str, type[Frame]]] = {}
    """All subclasses by name."""
    changing: ClassVar[Mapping[str, str]] = {}
    """Attributes with items of which only changes are sent, each with the attribute that identifies an item."""

    def __init_subclass__(cls) -> None:
        Frame.kinds[cls.__name__] = cls


class Encoder:
    """Encodes the messages that one child sends through its pipe. Keeps the items of which it sends only changes."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str], Any] = {}

    def encode(self, message: Frame) -> bytes:
        """Return the message as one line with its newline, without what the previous messages contain already."""
        values = _attributes(message)
        for part, key in message.changing.items():
            values[part] = []
            for item in getattr(message, part):
                identity = getattr(item, key)
                before, self._sent[part, identity] = self._sent.get((part, identity)), item
                changes = None if before is None else {key: identity, "changes": _changes(before, item)}
                values[part].append(changes or item)
        return json.dumps(values, separators=(",", ":"), default=_attributes).encode() + b"\n"


class Decoder:
    """Decodes the lines that the daemon receives from one child. Keeps the items of which it receives only changes."""

    def __init__(self) -> None:
        self._received: dict[tuple[str, str], Any] = {}

    def decode(self, line: bytes) -> Frame:
        """Return the message in this line. Raise FrameError if the line is not a frame of this schema version."""
        try:
            values = json.loads(line)
            kind: Any = Frame.kinds[values.pop("frame")]
            items: dict[str, tuple[Any, ...]] = {}
            for part, key in kind.changing.items():
                item_kind, _ = typing.get_args(_hints(kind)[part])
                places = []
                for item in values.pop(part):
                    place, changes = (part, item[key]), item.get("changes")
                    places.append(place)
                    if changes is None:
                        self._received[place] = _build(item_kind, item)
                    else:
                        self._received[place] = _with_changes(self._received[place], changes)
                items[part] = tuple(self._received[place] for place in places)
            message: Frame = kind(**_built(kind, values), **items)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FrameError(f"not a frame: {line[:200]!r} ({error})") from error
        return message


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of a value that are not None, without those of which only changes are sent."""
    kind = value.__class__
    named, changing = ({"frame": kind.__name__}, kind.changing) if issubclass(kind, Frame) else ({}, {})
    pairs = ((name, getattr(value, name)) for name in _names(kind) if name not in changing)
    return named | {name: attribute for name, attribute in pairs if attribute is not None}


def _changes(before: Any, after: Any) -> dict[str, Any]:
    """Return the attributes of `after` that differ from those of `before`; of a nested dataclass, only its changes."""
    changes = {}
    for name in _names(after.__class__):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            nested = new is not None and dataclasses.is_dataclass(old)
            changes[name] = _changes(old, new) if nested else new
    return changes


def _with_changes(before: Any, changes: dict[str, Any]) -> Any:
    """Return the value whose difference from `before` is `changes`. Unchanged parts are the same objects."""
    builders, after = _builders(before.__class__), dict(changes)
    for name, value in changes.items():
        old = getattr(before, name)
        if value is not None and dataclasses.is_dataclass(old):
            after[name] = _with_changes(old, value)
        elif value is not None and name in builders:
            after[name] = builders[name](value)
    return dataclasses.replace(before, **after)


def _build(kind: Callable[..., T], values: dict[str, Any]) -> T:
    return kind(**_built(kind, values))


def _built(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    builders = _builders(kind)
    return values | {name: builders[name](values[name]) for name in builders.keys() & values.keys()}


@cache
def _builders(kind: Any) -> dict[str, Callable[[Any], Any]]:
    """Return, for each attribute that differs from its JSON value, the function that builds it from that value."""
    builders = {name: _builder(_hints(kind)[name]) for name in _names(kind)}
    return {name: builder for name, builder in builders.items() if builder is not None}


def _builder(hint: Any) -> Callable[[Any], Any] | None:
    """Return the function that builds a value of this type from its JSON value; None if the two are the same."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Frame:
        return lambda values: _build(Frame.kinds[values.pop("frame")], values)
    if dataclasses.is_dataclass(hint):
        return partial(_build, hint)  # type: ignore[arg-type]
    parts = [builder for builder in map(_builder, arguments) if builder is not None]
    if not parts:
        return tuple if origin is tuple else None
    if origin is tuple:
        return lambda values: tuple(map(parts[0], values))
    if origin is Mapping:
        return lambda values: {key: None if value is None else parts[0](value) for key, value in values.items()}
    return lambda value: None if value is None else parts[0](value)  # a part, or None
