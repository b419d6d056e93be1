"""What an operator may decide about checks: limits, what is switched off, expected versions. Values only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

BOOT_GRACE = 300.0
"""Seconds after a boot in which links train and daemons start."""


class Range(NamedTuple):
    """The values that make sense of a number, both ends included."""

    least: float
    most: float = math.inf
    above: bool = False
    """The lowest value itself makes no sense: what it limits would always be wrong."""

    def holds(self, value: float) -> bool:
        low = value > self.least if self.above else value >= self.least
        return low and value <= self.most and math.isfinite(value)

    def __str__(self) -> str:
        if self.above:
            return f"above {self.least:.15g}" + (f", at most {self.most:.15g}" if math.isfinite(self.most) else "")
        return f"{self.least:.15g} to {self.most:.15g}" if math.isfinite(self.most) else f"{self.least:.15g} or more"


AMOUNT = Range(0)
"""0: any at all is too much."""
COUNT = Range(1)
"""At which something is wrong: with 0 it always would be."""
SHARE = Range(0, 1, above=True)


class Limit(NamedTuple):
    """A number of a check that an operator can set, beside the check that uses it."""

    name: str
    """Of the setting, its unit in the suffix."""
    default: float | None
    """None: off unless it is set."""
    meaning: str
    """One sentence."""
    range: Range
    graver: str = ""
    """Name of the limit of the next level, which this one does not pass."""

    @property
    def default_text(self) -> str:
        """Return the default as the shortest decimal that reads back as the same number, or "unset"."""
        value = self.default
        if value is None:
            return "unset"
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def senseless(given: Mapping[str, float | None], limits: Mapping[str, Limit]) -> Iterator[tuple[str, str]]:
    """Names of limits that are given a number that makes no sense, and what it should be."""
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
    """What the configuration says."""

    thresholds: Mapping[str, float | None] = field(default_factory=dict)
    """Those that differ from the shipped ones; None switches off what depends on one."""
    disabled: frozenset[str] = frozenset()
    """Checks that are not made."""
    boot_grace: float = BOOT_GRACE
    versions: Mapping[str, str] = field(default_factory=dict)
    """Expected, by what they are of: driver, vbios, ..."""

    def limit(self, one: Limit) -> float | None:
        return self.thresholds.get(one.name, one.default)
