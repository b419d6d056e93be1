"""The source revision of the package."""

from __future__ import annotations

from pathlib import Path

_FILE = Path(__file__).with_name("REVISION")
"""File with the commit, written by `make build`. A source checkout does not have it."""


def revision() -> str | None:
    """Return the first twelve digits of the commit from which the package was built; None in a source checkout."""
    return _FILE.read_text(encoding="ascii").strip() or None if _FILE.is_file() else None
