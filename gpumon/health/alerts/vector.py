"""Expressions evaluated over the agent's own history, with the results that Prometheus would give. Pure."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gpumon.health.alerts.expression import (
    Absent,
    Arithmetic,
    Combine,
    Compare,
    Expression,
    Highest,
    Limit,
    Now,
    On,
    Over,
    Reading,
    Scalar,
)
from gpumon.health.alerts.history import History
from gpumon.health.alerts.over_time import FUNCTIONS, divided
from gpumon.model.reading import Labels

Vector = dict[Labels, float]

_OPERATORS: Mapping[str, Callable[[float, float], float | bool]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": divided,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class MatchError(ValueError):
    """Two series of one side match the same series of the other: the rule needs other labels to match on."""


@dataclass(frozen=True, slots=True)
class View:
    """A history at one moment."""

    history: History
    at: float
    wall: float

    def vector(self, expression: Expression) -> Vector:
        """What the expression gives: labels, sorted and without the metric's name, to value."""
        match expression:
            case Reading():
                return self.history.current(expression, self.at)
            case Over():
                return dict(self._over(expression))
            case Highest(of=of, without=without):
                return _highest(self.vector(of), without)
            case Absent(of=of):
                only = tuple(sorted((name, value) for name, value in of.where if isinstance(value, str)))
                return {} if self.vector(of) else {only: 1.0}
            case Arithmetic() | Compare():
                return dict(self._calculated(expression))
            case Combine():
                return self._combined(expression)

    def _over(self, over: Over) -> Iterator[tuple[Labels, float]]:
        function = FUNCTIONS[over.function]
        for labels, window in self.history.window(over.of, over.window, self.at):
            value = function(window)
            if value is not None:
                yield labels, value

    def _calculated(self, expression: Arithmetic | Compare) -> Iterator[tuple[Labels, float]]:
        calculate = _OPERATORS[expression.operator]
        for labels, left, right in self._pairs(expression):
            value = calculate(left, right)
            if isinstance(expression, Arithmetic):
                yield labels, float(value)
            elif value:
                yield labels, left

    def _pairs(self, expression: Arithmetic | Compare) -> Iterator[tuple[Labels, float, float]]:
        left, right = self._side(expression.left), self._side(expression.right)
        if isinstance(left, float):
            if isinstance(right, float):
                raise TypeError(f"one side must be a reading: {expression}")
            yield from ((labels, left, value) for labels, value in right.items())
        elif isinstance(right, float):
            yield from ((labels, value, right) for labels, value in left.items())
        else:
            yield from _matched(left, right, expression.on)

    def _side(self, side: Expression | Scalar) -> Vector | float:
        match side:
            case Now():
                return self.wall
            case Limit(name=name):
                raise TypeError(f"threshold {name} has no value: resolve the expression first")
            case float() | int():
                return float(side)
            case _:
                return self.vector(side)

    def _combined(self, expression: Combine) -> Vector:
        left = self.vector(expression.left)
        if not left and expression.operator != "or":
            return {}
        right = self.vector(expression.right)
        if expression.operator == "or":
            known = {_signature(labels, expression.on) for labels in left}
            return left | {one: value for one, value in right.items() if _signature(one, expression.on) not in known}
        known = {_signature(labels, expression.on) for labels in right}
        wanted = expression.operator == "and"
        return {one: value for one, value in left.items() if (_signature(one, expression.on) in known) == wanted}


def _highest(vector: Vector, without: tuple[str, ...]) -> Vector:
    groups: Vector = {}
    for labels, value in vector.items():
        group = tuple(pair for pair in labels if pair[0] not in without)
        if group not in groups or groups[group] < value or math.isnan(groups[group]):
            groups[group] = value
    return groups


def _matched(left: Vector, right: Vector, on: On) -> Iterator[tuple[Labels, float, float]]:
    others: dict[Labels, float] = {}
    for labels, value in right.items():
        signature = _signature(labels, on)
        if signature in others:
            raise MatchError(f"several series on the right match on {on}: {labels}")
        others[signature] = value
    seen: set[Labels] = set()
    for labels, value in left.items():
        signature = _signature(labels, on)
        if signature in others:
            if signature in seen:
                raise MatchError(f"several series on the left match on {on}: {labels}")
            seen.add(signature)
            yield signature, value, others[signature]


def _signature(labels: Labels, on: On) -> Labels:
    return labels if on is None else tuple(pair for pair in labels if pair[0] in on)
