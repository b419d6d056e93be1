"""What an operator may decide about checks: limits, what is switched off, expected versions. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

BOOT_GRACE = 300.0
"""Seconds after a boot in which links train and daemons start."""


class Limit(NamedTuple):
    """A number of a check that an operator can set, beside the check that uses it."""

    name: str
    """Of the setting, its unit in the suffix."""
    default: float | None
    """None: off unless it is set."""
    meaning: str
    """One sentence."""


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
