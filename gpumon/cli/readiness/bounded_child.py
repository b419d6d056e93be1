"""Runs a command that may never end, for example because it opens a driver that hangs."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from subprocess import DEVNULL, PIPE
from typing import Any, NamedTuple

KILLED_SECONDS = 1.0
"""Maximum seconds to wait for the end of a killed child process. A child that is blocked in the kernel is abandoned."""


class ChildOutput(NamedTuple):
    """Standard output of a command (`text`), and why the command failed (`error`): empty if the exit code is 0."""

    text: str
    error: str


def run_bounded(command: Sequence[str], deadline: float, **user: Any) -> ChildOutput:
    """Run a command as `user` (see Popen) and return its output. Kill it if it takes longer than `deadline` seconds."""
    try:
        child = subprocess.Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True, errors="replace", **user)
    except OSError as error:
        return ChildOutput("", f"{command[0]}: {error.strerror or error}")
    try:
        text, errors = child.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=KILLED_SECONDS)
        return ChildOutput("", f"no answer within {deadline:g} s")
    last = next(reversed(errors.strip().splitlines()), "")
    return ChildOutput(text, f"exit code {child.returncode}: {last[:300]}" if child.returncode else "")
