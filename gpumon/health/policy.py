"""Settings of the checks: thresholds with their valid values, disabled checks, expected versions. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

BOOT_GRACE = 300.0
"""Default for the seconds after a boot in which some checks are skipped, because links train and daemons start."""


class Range(NamedTuple):
    """The valid values of a threshold, both ends included."""

    min: float
    max: float = math.inf
    open_below: bool = False
    """Whether `min` itself is invalid, because the check would always fire."""

    def contains(self, value: float) -> bool:
        low = value > self.min if self.open_below else value >= self.min
        return low and value <= self.max and math.isfinite(value)

    def __str__(self) -> str:
        if self.open_below:
            return f"above {self.min:.15g}" + (f", at most {self.max:.15g}" if math.isfinite(self.max) else "")
        return f"{self.min:.15g} to {self.max:.15g}" if math.isfinite(self.max) else f"{self.min:.15g} or more"


AMOUNT = Range(0)
"""Range of an amount: 0 or more. A single error exceeds a maximum of 0."""
COUNT = Range(1)
"""Range of a number of events: 1 or more. With 0 the check would always fire."""
SHARE = Range(0, 1, open_below=True)


class Limit(NamedTuple):
    """A threshold of a check that an operator can set."""

    name: str
    """Name of the setting, with the unit as its suffix. A limit of a healthy value has the prefix "max_" or "min_"."""
    default: float | None
    """Default threshold; None if the check is off until the threshold is set."""
    meaning: str
    """What the threshold limits, in one sentence."""
    range: Range
    next_threshold: str = ""
    """Name of the threshold for the next severity level. This threshold must not exceed that one."""

    @property
    def default_text(self) -> str:
        """Return the default as the shortest decimal that reads back as the same number, or "unset"."""
        return "unset" if self.default is None else f"{self.default:.15g}"


def invalid_thresholds(
    configured: Mapping[str, float | None], limits: Mapping[str, Limit]
) -> Iterator[tuple[str, str]]:
    """Yield (name, text) for each invalid threshold. The text states the valid values: "should be 1 or more".

    A threshold that exceeds its `next_threshold` is invalid too. `limits`: all limits by name.
    """
    values = {name: limit.default for name, limit in limits.items()} | dict(configured)
    for name, limit in limits.items():
        value, upper = values[name], values.get(limit.next_threshold)
        if name in configured and value is not None and not limit.range.contains(value):
            yield name, f"should be {limit.range}"
        elif value is None or upper is None or value <= upper:
            continue
        elif name in configured:
            yield name, f"should be at most {limit.next_threshold}, which is {upper:g}"
        elif limit.next_threshold in configured:
            yield limit.next_threshold, f"should be at least {name}, which is {value:g}"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The operator's configuration of the checks."""

    thresholds: Mapping[str, float | None] = field(default_factory=dict)
    """Thresholds that differ from their defaults, by name; None switches off whatever depends on the threshold."""
    disabled: frozenset[str] = frozenset()
    """Names of disabled checks."""
    boot_grace: float = BOOT_GRACE
    versions: Mapping[str, str] = field(default_factory=dict)
    """Expected versions by component: driver, vbios, ..."""

    def limit(self, limit: Limit) -> float | None:
        """Return the threshold in force; None if it is off: set to null by the operator, or by default and not set."""
        return self.thresholds.get(limit.name, limit.default)
