"""Builds the small C library that replaces libnvidia-ml for the dynamic linker."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).parent / "small_nvml.c"
NAME = "libnvidia-ml.so.1"
FAULTS = "SMALL_NVML_FAULTS"
"""Environment variable that names a file of lines `hang FUNCTION GPU`, `crash FUNCTION GPU`, `module VERSION N`."""


def build(folder: Path, texts: Mapping[str, str] | None = None) -> Path:
    """Compile the library into `folder`, which belongs into LD_LIBRARY_PATH, and return its path.

    `texts` replaces DRIVER, PRODUCT, UUID_0 and UUID_1. Requires gcc. Raises CalledProcessError.
    """
    defines = [f'-D{name}="{text}"' for name, text in (texts or {}).items()]
    options = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
    output = folder / NAME
    subprocess.run(
        ["gcc", *options, *defines, f"-Wl,-soname,{NAME}", "-o", str(output), str(SOURCE)],
        check=True,
        capture_output=True,
        text=True,
    )
    return folder
