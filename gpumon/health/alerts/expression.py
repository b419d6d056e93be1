"""The language of rules: small frozen expressions over the metrics, with the meaning that PromQL gives them.

Two back ends read them: evaluate.py over the agent's own history, render.py as PromQL. Durations are in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from gpumon.model.reading import Labels

Where = tuple[tuple[str, str | tuple[str, ...]], ...]
"""A label filter: each label equals the value, or is one of the values."""
On = tuple[str, ...] | None
"""Labels on which two sides are matched; None for all of them."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A threshold by name; `resolved` puts its value in."""

    name: str


@dataclass(frozen=True, slots=True)
class Now:
    """The time of the evaluation, in seconds since the epoch."""


Scalar = float | Limit | Now


@dataclass(frozen=True, slots=True)
class Reading:
    """The current value of each series of a metric."""

    name: str
    where: Where = ()


@dataclass(frozen=True, slots=True)
class Over:
    """A function of what each series did in the window that ends now."""

    function: Literal["increase", "rate", "min_over_time", "max_over_time", "avg_over_time", "last_over_time"]
    of: Reading
    window: float


@dataclass(frozen=True, slots=True)
class Highest:
    """The highest value of each group of series that differ in these labels only."""

    of: Expression
    without: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Absent:
    """1 when no such series exists."""

    of: Reading


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Series matched one to one; division as IEEE 754 has it."""

    left: Expression | Scalar
    operator: Literal["+", "-", "*", "/"]
    right: Expression | Scalar
    on: On = None


@dataclass(frozen=True, slots=True)
class Compare:
    """The series of the left side for which this is true, with their value."""

    left: Expression
    operator: Literal["==", "!=", "<", "<=", ">", ">="]
    right: Expression | Scalar
    on: On = None


@dataclass(frozen=True, slots=True)
class Combine:
    """Series of the left side that have a match on the right (and), have none (unless), or both sides (or)."""

    left: Expression
    operator: Literal["and", "or", "unless"]
    right: Expression
    on: On = None


Expression = Reading | Over | Highest | Absent | Arithmetic | Compare | Combine


def where(**labels: str | tuple[str, ...]) -> Where:
    """Write a label filter."""
    return tuple(labels.items())


def fits(labels: Labels, where: Where) -> bool:
    """Whether a series passes a filter; a label it has not is empty."""
    own = dict(labels) if where else {}
    for name, wanted in where:
        value = own.get(name, "")
        if value != wanted if isinstance(wanted, str) else value not in wanted:
            return False
    return True


def parts(expression: Expression | Scalar) -> Iterator[Expression | Scalar]:
    """The expression and all that it is made of."""
    yield expression
    match expression:
        case Over(of=of) | Highest(of=of) | Absent(of=of):
            yield from parts(of)
        case Arithmetic(left=left, right=right) | Compare(left=left, right=right) | Combine(left=left, right=right):
            yield from parts(left)
            yield from parts(right)


def windows(expression: Expression) -> dict[str, float]:
    """Metric names that an expression reads, with the longest window it needs of each; 0 for the current value."""
    needed: dict[str, float] = {}
    for part in parts(expression):
        if isinstance(part, Reading):
            needed.setdefault(part.name, 0.0)
        elif isinstance(part, Over):
            needed[part.of.name] = max(part.window, needed.get(part.of.name, 0.0))
    return needed


def limits(expression: Expression) -> tuple[str, ...]:
    """Names of the thresholds that an expression uses, in their order."""
    return tuple(dict.fromkeys(part.name for part in parts(expression) if isinstance(part, Limit)))


def resolved(expression: Expression, thresholds: Mapping[str, float | None]) -> Expression | None:
    """The expression with thresholds put in. What depends on an unset one falls away; None when nothing is left."""
    match expression:
        case Combine(operator="or"):
            left, right = resolved(expression.left, thresholds), resolved(expression.right, thresholds)
            return replace(expression, left=left, right=right) if left and right else left or right
        case Combine(operator="unless"):
            left, right = resolved(expression.left, thresholds), resolved(expression.right, thresholds)
            return replace(expression, left=left, right=right) if left and right else left
        case Combine() | Compare() | Arithmetic():
            return _both(expression, thresholds)
        case Highest(of=of):
            inner = resolved(of, thresholds)
            return inner and replace(expression, of=inner)
        case Reading(where=labels):
            return None if any(values == () for _, values in labels) else expression
        case Over(of=of) | Absent(of=of):
            return resolved(of, thresholds) and expression


def _both(
    expression: Arithmetic | Compare | Combine, thresholds: Mapping[str, float | None]
) -> Arithmetic | Compare | Combine | None:
    left, right = _side(expression.left, thresholds), _side(expression.right, thresholds)
    # What a side becomes is of the kind it was, or a number in place of a threshold.
    return None if left is None or right is None else replace(expression, left=left, right=right)  # type: ignore[arg-type]


def _side(side: Expression | Scalar, thresholds: Mapping[str, float | None]) -> Expression | Scalar | None:
    match side:
        case Limit(name=name):
            return thresholds[name]
        case float() | int() | Now():
            return side
        case _:
            return resolved(side, thresholds)
