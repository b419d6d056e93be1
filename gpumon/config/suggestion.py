"""A remedy for an unknown name of a setting, a command, a check or a profile."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def did_you_mean(name: str, valid: Collection[str]) -> str:
    """Return a remedy for an unknown name, as text: the most similar valid name, or a list of all valid names."""
    near = difflib.get_close_matches(name, valid, n=1)
    return f"did you mean {near[0]}?" if near else f"valid names: {', '.join(sorted(valid))}"
