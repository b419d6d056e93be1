"""Helm's library, schemas and Ansible, in their own Python environment, which `make test-slow` prepares."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("GPUMON_DEPLOY_TOOLS", Path(sys.prefix) / "deploy"))
"""Environment in which they are installed."""


def tool(name: str) -> str:
    """Return the path of a program, or skip the test if it is not installed, which `make test-slow` does."""
    path = FOLDER / "bin" / name
    if not path.exists():
        pytest.skip(f"{name} is not installed in {FOLDER}: make .venv/.deploy")
    return str(path)
