"""Blocks processes at their exit, so that SIGKILL does not end them, as with a call that hangs in a driver."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_name("unkillable.c")


def build(folder: Path) -> Path:
    """Compile the program that blocks them. Requires gcc."""
    compiler = shutil.which("gcc")
    assert compiler is not None, "install gcc"
    program = folder / "unkillable"
    subprocess.run([compiler, "-o", program, SOURCE], check=True)
    return program


@contextmanager
def held(program: Path, pid: int) -> Iterator[None]:
    """Block the process during the block: SIGKILL does not end it."""
    holder = subprocess.Popen([program, str(pid)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"holding\n"
    try:
        yield
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
