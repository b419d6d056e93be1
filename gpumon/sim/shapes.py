"""Shapes of what a scenario may hold: each takes a value and its path in the file, and answers the value, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from gpumon.sim.codes import Code
from gpumon.sim.exports import EXPORTS

Path = tuple[str | int, ...]
Shape = Callable[[Any, Path], Any]


class ShapeError(ValueError):
    """A value of the wrong shape, and where it stands."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(problem)
        self.path = path


class Growth(NamedTuple):
    """A number, or one that grows by `rate` a second from `since` (seconds after the epoch) on."""

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
    """A number within bounds."""

    def shape(value: Any, path: Path) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ShapeError(path, f"must be a number from {low:g} to {high:g}{unit and ': ' + unit}")
        return value

    return shape


def whole(low: int, high: int, unit: str = "") -> Shape:
    """A number without a fraction."""
    bounded = number(low, high, unit)

    def shape(value: Any, path: Path) -> int:
        if bounded(value, path) != int(value):
            raise ShapeError(path, "must be a whole number")
        return int(value)

    return shape


def any_number(value: Any, path: Path) -> float:
    """A number without bounds; .nan and .inf are numbers too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ShapeError(path, "must be a number")
    return value


def growing(low: float, high: float, unit: str = "") -> Shape:
    """A number within bounds, or `{value, rate, from}`."""
    return moving(number(low, high, unit))


def moving(plain: Shape) -> Shape:
    """A number of this shape, or `{value, rate, from}`."""
    rest = {"value": plain, "rate": number(-1e12, 1e12), "from": number(0, 1e12)}

    def shape(value: Any, path: Path) -> Growth:
        if not isinstance(value, dict):
            return Growth(plain(value, path))
        parts = fields(rest)(value, path)
        return Growth(parts.get("value", 0.0), parts.get("rate", 0.0), parts.get("from", 0.0))

    return shape


def optional(inner: Shape) -> Shape:
    """The same, or null."""
    return lambda value, path: None if value is None else inner(value, path)


def one_of(*choices: str) -> Shape:
    def shape(value: Any, path: Path) -> str:
        if value not in choices:
            raise ShapeError(path, "must be one of " + ", ".join(repr(choice) for choice in choices))
        return str(value)

    return shape


def either(this: Shape, that: Shape) -> Shape:
    """One of two shapes; what fits neither is judged by the second."""

    def shape(value: Any, path: Path) -> Any:
        try:
            return this(value, path)
        except ShapeError:
            return that(value, path)

    return shape


def code(value: Any, path: Path) -> int:
    """NVML's return code, by number or by name."""
    if isinstance(value, str) and value in Code.__members__:
        return Code[value]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ShapeError(path, "must be a return code of NVML other than 0, such as 15 or GPU_IS_LOST")
    return value


def fields(known: Mapping[str, Shape]) -> Shape:
    """A mapping of some of the known keys."""

    def shape(value: Any, path: Path) -> dict[str, Any]:
        return {key: _known(known, key, path)(inner, (*path, key)) for key, inner in _mapping(value, path).items()}

    return shape


def _known(known: Mapping[str, Shape], key: Any, path: Path) -> Shape:
    if key not in known:
        raise ShapeError((*path, key), f"unknown key {key!r}; known are " + ", ".join(sorted(known)))
    return known[key]


def listing(inner: Shape) -> Shape:
    """A list."""

    def shape(value: Any, path: Path) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ShapeError(path, "must be a list")
        return tuple(inner(one, (*path, n)) for n, one in enumerate(value))

    return shape


def by_key(key: Shape, inner: Shape) -> Shape:
    """A mapping whose keys have a shape of their own."""

    def shape(value: Any, path: Path) -> dict[Any, Any]:
        return {key(k, (*path, k)): inner(v, (*path, k)) for k, v in _mapping(value, path).items()}

    return shape


def functions(value: Any, path: Path) -> str:
    """A pattern, as of file names, that at least one exported function matches.

    In a process that simulates files alone, the library is not loaded: there each pattern is as good as any other.
    """
    if not isinstance(value, str) or (EXPORTS and not any(fnmatchcase(name, value) for name in EXPORTS)):
        raise ShapeError(path, f"{value!r} matches no function that the simulated library has")
    return value


def _mapping(value: Any, path: Path) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ShapeError(path, "must be a mapping")
    return value
