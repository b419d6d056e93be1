"""Other NVML clients, in their own Python environment, which `make test-slow` prepares."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("GPUMON_PEERS", Path(sys.prefix) / "peers"))
"""Environment in which they are installed."""


def program(name: str) -> str:
    """Return the path of a program, or skip the test if it is not installed, which `make test-slow` does."""
    path = FOLDER / "bin" / name
    if not path.exists():
        pytest.skip(f"{name} is not installed in {FOLDER}: make .venv/.peers")
    return str(path)


def on_the_node(profile: str, *arguments: str, scenario: Path | None = None) -> list[str]:
    """Return the command that runs a program on a simulated node."""
    named = ["--scenario", str(scenario)] if scenario else []
    return [sys.executable, "-m", "gpumon_sim", profile, *named, "--", *arguments]
