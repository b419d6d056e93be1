"""The error for an invalid configuration, with all problems, and the texts of problems and remedies."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumon.model.durations import seconds

if TYPE_CHECKING:  # a child of the simulator does not load pydantic, to save memory
    from pydantic_core import ErrorDetails

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
    path, _, line = problem.origin.rpartition(":")
    return (path, int(line)) if line.isdecimal() else (problem.origin, 0)


def did_you_mean(name: str, valid: Collection[str]) -> str:
    """Return a remedy for an unknown name, as text: the most similar valid name, or a list of all valid names."""
    near = difflib.get_close_matches(name, valid, n=1)
    return f"did you mean {near[0]}?" if near else f"valid names: {', '.join(sorted(valid))}"


_WRONG = {
    "value_error": "{error}",
    "literal_error": "must be {expected}",
    "bool": "must be true or false",
    "int": "must be a whole number",
    "float": "must be a number",
    "finite_number": "must be a finite number",
    "string": "must be text",
    "path": "must be a path",
    "tuple": "must be a list",
    "model": "must be a mapping of keys to values",
    "missing": "is missing",
    "dict": "must be a mapping of keys to values",
    "greater_than_equal": "must be {ge:.15g} or more",
    "greater_than": "must be above {gt:.15g}",
    "less_than_equal": "must be at most {le:.15g}",
}
"""Text by the beginning of the type of pydantic's error."""


def describe_error(error: ErrorDetails) -> str:
    """Return what is wrong with a value, in the words of YAML instead of those of Python and pydantic."""
    duration = seconds(error["input"]) if error["type"] == "float_parsing" else None
    if duration is not None:
        return f"must be a number, such as {duration:.15g} (seconds)"
    template = next((text for kind, text in _WRONG.items() if error["type"].startswith(kind)), error["msg"])
    return template.format_map(error.get("ctx", {}))
