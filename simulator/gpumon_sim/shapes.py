"""Validators of scenario values, called shapes, and functions that build them.

A validator takes a value and its path (keys and list positions) in the scenario file. It returns the value, perhaps
converted, or raises ShapeError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from gpumon_sim.codes import Code
from gpumon_sim.exports import EXPORTS

Path = tuple[str | int, ...]
Shape = Callable[[Any, Path], Any]


class ShapeError(ValueError):
    """Raised for an invalid value in a scenario. `path` has the keys and list positions that lead to the value."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(problem)
        self.path = path


class Growth(NamedTuple):
    """A numeric value in a scenario that may grow over time: `value` until `since`, then `rate` more per second.

    `since` is in seconds since the simulation began. A constant value has the rate 0.
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
    """Return a validator of numbers from `low` to `high`. `unit` is text that the error message appends."""

    def shape(value: Any, path: Path) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ShapeError(path, f"must be a number from {low:g} to {high:g}{unit and ': ' + unit}")
        return value

    return shape


def whole(low: int, high: int, unit: str = "") -> Shape:
    """Return a validator of whole numbers from `low` to `high`. `unit` is text that the error message appends."""
    bounded = number(low, high, unit)

    def shape(value: Any, path: Path) -> int:
        if bounded(value, path) != int(value):
            raise ShapeError(path, "must be a whole number")
        return int(value)

    return shape


def any_number(value: Any, path: Path) -> float:
    """Validate a number without bounds, including YAML's .nan and .inf."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ShapeError(path, "must be a number")
    return value


def growing_number(low: float, high: float, unit: str = "") -> Shape:
    """Return a validator of a number from `low` to `high`, or of a mapping `{value, rate, from}` for a growing number.

    The validator returns a Growth.
    """
    return growth(number(low, high, unit))


def growth(plain: Shape) -> Shape:
    """Return a validator of a number that `plain` accepts, or of `{value, rate, from}` for a number that grows.

    In a mapping, `plain` validates the key `value`. The validator returns a Growth.
    """
    rest = {"value": plain, "rate": number(-1e12, 1e12), "from": number(0, 1e12)}

    def shape(value: Any, path: Path) -> Growth:
        if not isinstance(value, dict):
            return Growth(plain(value, path))
        parts = fields(rest)(value, path)
        return Growth(parts.get("value", 0.0), parts.get("rate", 0.0), parts.get("from", 0.0))

    return shape


def optional(inner: Shape) -> Shape:
    """Return a validator that accepts null (it returns None) and all values that `inner` accepts."""
    return lambda value, path: None if value is None else inner(value, path)


def one_of(*choices: str) -> Shape:
    def shape(value: Any, path: Path) -> str:
        if value not in choices:
            raise ShapeError(path, "must be one of " + ", ".join(repr(choice) for choice in choices))
        return str(value)

    return shape


def either(this: Shape, that: Shape) -> Shape:
    """Return a validator that accepts all values that at least one of two validators accepts.

    If neither accepts a value, the error of `that` is raised.
    """

    def shape(value: Any, path: Path) -> Any:
        try:
            return this(value, path)
        except ShapeError:
            return that(value, path)

    return shape


def code(value: Any, path: Path) -> int:
    """Validate an NVML error code, given as a number or as a name of Code. Return the number."""
    number = Code.__members__.get(value, value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ShapeError(path, "must be a return code of NVML other than 0, such as 15 or GPU_IS_LOST")
    return number


def fields(shape_by_key: Mapping[str, Shape]) -> Shape:
    """Return a validator of mappings with any of the keys in `shape_by_key`, and no others.

    Each value is validated by the validator for its key.
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
    """Return a validator of lists, whose items `inner` validates. The validator returns a tuple."""

    def shape(value: Any, path: Path) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ShapeError(path, "must be a list")
        return tuple(inner(item, (*path, n)) for n, item in enumerate(value))

    return shape


def by_key(key: Shape, inner: Shape) -> Shape:
    """Return a validator of mappings, whose keys `key` validates and whose values `inner` validates."""

    def shape(value: Any, path: Path) -> dict[Any, Any]:
        return {key(k, (*path, k)): inner(v, (*path, k)) for k, v in _mapping(value, path).items()}

    return shape


def functions(value: Any, path: Path) -> str:
    """Validate an fnmatch pattern that matches the name of at least one function of the simulated library.

    In a process that does not load the simulated library, such as the host child, accept any pattern.
    """
    if not isinstance(value, str) or (EXPORTS and not any(fnmatchcase(name, value) for name in EXPORTS)):
        raise ShapeError(path, f"{value!r} matches no function that the simulated library has")
    return value


def _mapping(value: Any, path: Path) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ShapeError(path, "must be a mapping")
    return value
