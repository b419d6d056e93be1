"""Measures the duration of `gpumon check` including the start of Python: schedulers run it often and wait for it."""

from __future__ import annotations

import compileall
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from agents import AgentProcess

import gpumon
from benchmarks.measures import percentiles

RUNS = 100


def check_times(agent: AgentProcess) -> Iterator[tuple[str, str]]:
    """Yield times of the command while the agent runs, and of the start of Python alone."""
    compileall.compile_dir(Path(gpumon.__file__).parent, quiet=1)  # as pip does
    program = Path(sys.executable).with_name("gpumon")
    command = [str(program), "check", f"--store.path={agent.folder / 'gpumon.db'}"]
    yield "gpumon check", _times(command)
    yield "python's own start", _times([sys.executable, "-c", "pass"])


def _times(command: list[str]) -> str:
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        subprocess.run(command, check=False, capture_output=True)
        times.append(time.perf_counter() - began)
    return percentiles(sorted(times))
