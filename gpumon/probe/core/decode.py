"""A frozen value from the JSON that holds it: every attribute is what its declaration says, or it is refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

MOST = 1e21
"""No figure of a run comes near it, and none is less than 0; infinity and what is not a number are not between."""


def decoded(kind: Any, value: Any) -> Any:
    """`value` as this kind. An object may have more members. Raises TypeError and ValueError."""
    if attributes := _attributes(kind):
        known = _object(value)
        return kind(**{name: decoded(one, known[name]) for name, one in attributes.items() if name in known})
    parts = get_args(kind)
    match get_origin(kind):
        case None:
            return _plain(kind, value)
        case origin if origin is UnionType:  # with None, and no other
            return None if value is None else decoded(parts[0], value)
        case origin if origin is tuple:
            kinds = parts[:1] * len(_list(value)) if parts[-1] is Ellipsis else parts
            return tuple(decoded(part, one) for part, one in zip(kinds, _list(value), strict=True))
        case _:
            return {decoded(parts[0], key): decoded(parts[1], one) for key, one in _object(value).items()}


@cache
def _attributes(kind: Any) -> Mapping[str, Any]:
    """By name, how each is declared; of a dataclass alone."""
    return get_type_hints(kind) if is_dataclass(kind) else {}


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r:.100} is no object")
    return value


def _list(value: Any) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{value!r:.100} is no list")
    return value


def _plain(kind: Any, value: Any) -> Any:
    if kind is str and type(value) is str:
        return value.encode(errors="replace").decode()  # half a character cannot be told to anybody
    if type(value) is not kind and (kind, type(value)) != (float, int):
        raise TypeError(f"{value!r:.100} is no {kind.__name__}")
    if kind is not bool and not 0 <= value <= MOST:
        raise ValueError(f"{value!r:.100} is no figure")
    return kind(value)
