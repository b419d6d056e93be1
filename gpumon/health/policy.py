"""Settings of the checks: thresholds, disabled checks, expected versions. Values only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

BOOT_GRACE = 300.0
"""Seconds after a boot in which links train and daemons start."""


class Range(NamedTuple):
    """The valid values of a threshold, both ends included."""

    least: float
    most: float = math.inf
    above: bool = False
    """Whether the lowest value itself is invalid, because the check would always fire."""

    def holds(self, value: float) -> bool:
        low = value > self.least if self.above else value >= self.least
        return low and value <= self.most and math.isfinite(value)

    def __str__(self) -> str:
        if self.above:
            return f"above {self.least:.15g}" + (f", at most {self.most:.15g}" if math.isfinite(self.most) else "")
        return f"{self.least:.15g} to {self.most:.15g}" if math.isfinite(self.most) else f"{self.least:.15g} or more"


AMOUNT = Range(0)
"""Any amount; 0 means that the first one is too much."""
COUNT = Range(1)
"""A number of events; with 0 the check would always fire."""
SHARE = Range(0, 1, above=True)


class Limit(NamedTuple):
    """A threshold of a check that an operator can set."""

    name: str
    """Name of the setting, with the unit as suffix."""
    default: float | None
    """None if the check is off until the threshold is set."""
    meaning: str
    """One sentence."""
    range: Range
    graver: str = ""
    """Name of the threshold of the next level, which this one must not exceed."""

    @property
    def default_text(self) -> str:
        """Return the default as the shortest decimal that reads back as the same number, or "unset"."""
        value = self.default
        if value is None:
            return "unset"
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def senseless(given: Mapping[str, float | None], limits: Mapping[str, Limit]) -> Iterator[tuple[str, str]]:
    """Yield the names of thresholds with an invalid value, and the valid values."""
    values = {name: limit.default for name, limit in limits.items()} | dict(given)
    for name, limit in limits.items():
        own, graver = values[name], values.get(limit.graver)
        if name in given and own is not None and not limit.range.holds(own):
            yield name, f"should be {limit.range}"
        elif own is not None and graver is not None and own > graver and given.keys() & {name, limit.graver}:
            late = name not in given
            words = f"at least {name}, which is {own:g}" if late else f"at most {limit.graver}, which is {graver:g}"
            yield limit.graver if late else name, f"should be {words}"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The configuration of the checks."""

    thresholds: Mapping[str, float | None] = field(default_factory=dict)
    """Thresholds that differ from the defaults; None switches off what depends on one."""
    disabled: frozenset[str] = frozenset()
    """Names of disabled checks."""
    boot_grace: float = BOOT_GRACE
    versions: Mapping[str, str] = field(default_factory=dict)
    """Expected versions by component: driver, vbios, ..."""

    def limit(self, one: Limit) -> float | None:
        return self.thresholds.get(one.name, one.default)
