"""Texts for errors that pydantic reports about a value of a configuration file."""

from __future__ import annotations

from pydantic_core import ErrorDetails

from gpumon.model.durations import seconds

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
