"""The answer of a check of `gpumon doctor`, and the row of such a check in the table of checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpumon.cli.readiness.host_facts import HostFacts
from gpumon.health.verdict import FAIL, OK, UNKNOWN, WARN, Level

__all__ = ["ABSENT", "FAIL", "OK", "UNKNOWN", "WARN", "Readiness", "ReadinessCheck", "count"]
ABSENT = None
"""Value of `Readiness.level` if the question does not apply to this host."""


class Readiness(NamedTuple):
    """The answer to one question about this host."""

    level: Level | None
    detail: str
    remedy: str = ""
    """Commands to paste into a shell; empty if nothing is to be done."""

    @property
    def word(self) -> str:
        return "absent" if self.level is None else self.level.word


class ReadinessCheck(NamedTuple):
    """A row of the table of checks, from which docs/doctor.md is generated."""

    name: str
    question: str
    answer: Callable[[HostFacts], Readiness]


def count(number: float, noun: str = "GPU") -> str:
    return f"{number:.0f} {noun}{'s' * (number != 1)}"
