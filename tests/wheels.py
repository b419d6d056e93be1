"""Builds the wheels of the agent and of the simulator as `make build` does, from copies of the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_JUNK = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")


def agent_wheel(folder: Path, *, revision: str = "") -> Path:
    """Return the wheel of gpumon, built below an empty folder. `revision` is that of the command `gpumon --version`."""
    shutil.copytree(ROOT / "gpumon", folder / "gpumon", ignore=_JUNK)
    if revision:
        (folder / "gpumon" / "REVISION").write_text(revision + "\n", encoding="ascii")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return _build(folder)


def simulator_wheel(folder: Path) -> Path:
    """Return the wheel of gpumon-sim, built in a folder that does not exist."""
    shutil.copytree(ROOT / "simulator", folder, ignore=_JUNK)
    return _build(folder)


def _build(folder: Path) -> Path:
    command = (
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(folder / "dist"),
        str(folder),
    )
    subprocess.run(command, check=True, capture_output=True, timeout=170)
    [built] = (folder / "dist").glob("*.whl")
    return built
