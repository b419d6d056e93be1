"""Other people's clients of NVML, in a Python environment of their own that `make test` prepares."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("GPUMON_PEERS", Path(sys.prefix) / "peers"))
"""The environment in which they are installed."""


def program(name: str) -> str:
    """Its path. Skips the test where it is not installed: `make test` installs it."""
    path = FOLDER / "bin" / name
    if not path.exists():
        pytest.skip(f"{name} is not installed in {FOLDER}: make .venv/.peers")
    return str(path)


def on_the_node(profile: str, *arguments: str, scenario: Path | None = None) -> list[str]:
    """Command that runs a program on a simulated node."""
    named = ["--scenario", str(scenario)] if scenario else []
    return [sys.executable, "-m", "gpumon", "simulate", profile, *named, "--", *arguments]
