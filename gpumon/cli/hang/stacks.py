"""Reads stacks with py-spy, if it is installed. It stops a process for some milliseconds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from gpumon.cli.hang.dump import MAX_FRAMES, code_line, safe_text
from gpumon.cli.hang.evidence import CodeLine, ReadError

TIMEOUT_SECONDS = 10.0


def find_py_spy() -> str | None:
    """Return the path of py-spy: beside this Python, else in PATH; None if it is not installed."""
    own = Path(sys.executable).with_name("py-spy")
    return str(own) if own.is_file() else shutil.which("py-spy")


def read_stack(py_spy: str, pid: int, *, stopped: bool) -> tuple[CodeLine, ...]:
    """Return the stack of the main thread, innermost line first. Raise ReadError if py-spy cannot read it."""
    command = [py_spy, "dump", "--json", "--pid", str(pid), *(["--nonblocking"] if stopped else [])]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
        if ended.returncode:
            raise ReadError(f"py-spy: {safe_text(ended.stderr.decode(errors='replace').strip().partition(chr(10))[0])}")
        threads = json.loads(ended.stdout)
        main = next((thread for thread in threads if thread["thread_name"] == "MainThread"), threads[-1])
        return tuple(code_line(frame) for frame in main["frames"][:MAX_FRAMES])
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
        raise ReadError(f"py-spy: {safe_text(str(error))}") from error
