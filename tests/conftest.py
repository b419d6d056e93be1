"""Marks whole folders as slow; a single slow test carries the mark itself."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
SLOW = tuple(HERE / folder for folder in ("e2e", "peers"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in SLOW):
            item.add_marker(pytest.mark.slow)
