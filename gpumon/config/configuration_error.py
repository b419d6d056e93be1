"""The error for an invalid configuration. It contains all problems, each with its origin and its remedy."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

MAX_SHOWN = 50
"""Maximum number of problems in the message of an error."""


@dataclass(frozen=True, slots=True)
class ConfigurationProblem:
    """One mistake in the configuration: where it is, what is wrong, and how to correct it."""

    origin: str
    """Where the value was set: file and line, environment variable or flag."""
    key: str
    wrong: str
    remedy: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.origin, self.key, self.wrong) if part) + f"; {self.remedy}"


class ConfigurationError(Exception):
    """Raised for an invalid configuration, with all its problems by line. The message shows up to MAX_SHOWN of them."""

    def __init__(self, problems: Collection[ConfigurationProblem]) -> None:
        self.problems = tuple(sorted(problems, key=_position))
        lines = [str(problem) for problem in self.problems[:MAX_SHOWN]]
        more = len(problems) - len(lines)
        super().__init__("\n".join([*lines, f"and {more} more problems"] if more else lines))


def _position(problem: ConfigurationProblem) -> tuple[str, int]:
    """Return the source of the value and, for a file, its line."""
    path, _, line = problem.origin.rpartition(":")
    return (path, int(line)) if line.isdecimal() else (problem.origin, 0)
