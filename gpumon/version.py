"""The source revision of the package."""

from __future__ import annotations

from pathlib import Path

_FILE = Path(__file__).with_name("REVISION")
"""Written by `make build`. A checkout has none."""


def revision() -> str | None:
    """Return the first twelve digits of the commit; None if it is not recorded."""
    return _FILE.read_text(encoding="ascii").strip() or None if _FILE.is_file() else None
