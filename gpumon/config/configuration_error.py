"""The error of an invalid configuration: every problem, with its source and its remedy."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection
from dataclasses import dataclass

MAX_SHOWN = 50
"""Maximum number of problems in the message of an error."""


@dataclass(frozen=True, slots=True)
class ConfigurationProblem:
    """One mistake in the configuration."""

    origin: str
    """File and line, environment variable or flag."""
    key: str
    wrong: str
    remedy: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.origin, self.key, self.wrong) if part) + f"; {self.remedy}"


class ConfigurationError(Exception):
    """All problems of a configuration. Its message has one line for each."""

    def __init__(self, problems: Collection[ConfigurationProblem]) -> None:
        lines = [str(problem) for problem in itertools.islice(problems, MAX_SHOWN)]
        more = len(problems) - len(lines)
        super().__init__("\n".join([*lines, f"and {more} more problems"] if more else lines))
        self.problems = tuple(problems)


def did_you_mean(name: str, valid: Collection[str]) -> str:
    """Return a remedy for an unknown name: the valid name that is nearest, or all of them."""
    near = difflib.get_close_matches(name, valid, n=1)
    return f"did you mean {near[0]}?" if near else f"valid names: {', '.join(sorted(valid))}"
