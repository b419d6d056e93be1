"""Validators of scenario values, called shapes. Each takes a value and its path in the file.

A validator returns the valid value, perhaps converted, or raises ShapeError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from gpumon.sim.codes import Code
from gpumon.sim.exports import EXPORTS

Path = tuple[str | int, ...]
Shape = Callable[[Any, Path], Any]


class ShapeError(ValueError):
    """Raised for an invalid value in a scenario. `path` has the keys and list positions that lead to the value."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(problem)
        self.path = path


class Growth(NamedTuple):
    """A number of a scenario that may grow: `value` until `since`, then growing by `rate` a second.

    `since` is in seconds since the simulation began.
    """

    value: float
    rate: float = 0.0
    since: float = 0.0

    def at(self, time: float) -> float:
        return self.value + self.rate * max(0.0, time - self.since)


def flag(value: Any, path: Path) -> bool:
    if not isinstance(value, bool):
        raise ShapeError(path, "must be true or false")
    return value


def number(low: float, high: float, unit: str = "") -> Shape:
    """Return a validator of numbers from `low` to `high`. `unit` is for the error message."""

    def shape(value: Any, path: Path) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ShapeError(path, f"must be a number from {low:g} to {high:g}{unit and ': ' + unit}")
        return value

    return shape


def whole(low: int, high: int, unit: str = "") -> Shape:
    """Return a validator of whole numbers from `low` to `high`. `unit` is for the error message."""
    bounded = number(low, high, unit)

    def shape(value: Any, path: Path) -> int:
        if bounded(value, path) != int(value):
            raise ShapeError(path, "must be a whole number")
        return int(value)

    return shape


def any_number(value: Any, path: Path) -> float:
    """Validate a number of any size, including .nan and .inf."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ShapeError(path, "must be a number")
    return value


def growing(low: float, high: float, unit: str = "") -> Shape:
    """Return a validator of a number within bounds, or of `{value, rate, from}` for one that grows.

    The validator returns a Growth.
    """
    return moving(number(low, high, unit))


def moving(plain: Shape) -> Shape:
    """Return a validator of what `plain` accepts, or of `{value, rate, from}` for a number that grows.

    The validator returns a Growth.
    """
    rest = {"value": plain, "rate": number(-1e12, 1e12), "from": number(0, 1e12)}

    def shape(value: Any, path: Path) -> Growth:
        if not isinstance(value, dict):
            return Growth(plain(value, path))
        parts = fields(rest)(value, path)
        return Growth(parts.get("value", 0.0), parts.get("rate", 0.0), parts.get("from", 0.0))

    return shape


def optional(inner: Shape) -> Shape:
    """Return a validator that accepts null and what `inner` accepts."""
    return lambda value, path: None if value is None else inner(value, path)


def one_of(*choices: str) -> Shape:
    def shape(value: Any, path: Path) -> str:
        if value not in choices:
            raise ShapeError(path, "must be one of " + ", ".join(repr(choice) for choice in choices))
        return str(value)

    return shape


def either(this: Shape, that: Shape) -> Shape:
    """Return a validator that accepts what one of two validators accepts.

    If neither accepts the value, the second one's error is raised.
    """

    def shape(value: Any, path: Path) -> Any:
        try:
            return this(value, path)
        except ShapeError:
            return that(value, path)

    return shape


def code(value: Any, path: Path) -> int:
    """Validate an error code of NVML, given as number or name. Return the number."""
    if isinstance(value, str) and value in Code.__members__:
        return Code[value]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ShapeError(path, "must be a return code of NVML other than 0, such as 15 or GPU_IS_LOST")
    return value


def fields(shape_by_key: Mapping[str, Shape]) -> Shape:
    """Return a validator of mappings that have no other keys than these.

    Each value is validated by its key's validator.
    """

    def shape(value: Any, path: Path) -> dict[str, Any]:
        return {
            key: _shape_of(shape_by_key, key, path)(inner, (*path, key)) for key, inner in _mapping(value, path).items()
        }

    return shape


def _shape_of(shape_by_key: Mapping[str, Shape], key: Any, path: Path) -> Shape:
    if key not in shape_by_key:
        raise ShapeError((*path, key), f"unknown key {key!r}; valid keys: " + ", ".join(sorted(shape_by_key)))
    return shape_by_key[key]


def listing(inner: Shape) -> Shape:
    """Return a validator of lists whose items `inner` accepts. The validator returns a tuple."""

    def shape(value: Any, path: Path) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ShapeError(path, "must be a list")
        return tuple(inner(item, (*path, n)) for n, item in enumerate(value))

    return shape


def by_key(key: Shape, inner: Shape) -> Shape:
    """Return a validator of mappings whose keys `key` accepts and whose values `inner` accepts."""

    def shape(value: Any, path: Path) -> dict[Any, Any]:
        return {key(k, (*path, k)): inner(v, (*path, k)) for k, v in _mapping(value, path).items()}

    return shape


def functions(value: Any, path: Path) -> str:
    """Validate a pattern, as for file names, that matches at least one function of the simulated library.

    In a process that does not load the library, such as the links child, any pattern is accepted.
    """
    if not isinstance(value, str) or (EXPORTS and not any(fnmatchcase(name, value) for name in EXPORTS)):
        raise ShapeError(path, f"{value!r} matches no function that the simulated library has")
    return value


def _mapping(value: Any, path: Path) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ShapeError(path, "must be a mapping")
    return value
