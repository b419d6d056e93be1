"""Holds processes at their exit: SIGKILL brings them there and no further, as a call stuck in a driver does."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_name("unkillable.c")


def build(folder: Path) -> Path:
    """Compile the holder. Needs gcc."""
    compiler = shutil.which("gcc")
    assert compiler is not None, "install gcc"
    program = folder / "unkillable"
    subprocess.run([compiler, "-o", program, SOURCE], check=True)
    return program


@contextmanager
def held(program: Path, pid: int) -> Iterator[None]:
    """While this lasts SIGKILL does not end the process."""
    holder = subprocess.Popen([program, str(pid)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"holding\n"
    try:
        yield
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
