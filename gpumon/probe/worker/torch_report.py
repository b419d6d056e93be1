"""Prints one line of JSON about the PyTorch of this interpreter, for `gpumon doctor`, which runs this file by its path.

The program needs Python 3.9 or later, and only the standard library. It creates no CUDA context.
"""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

WATCHED = ("pynvml", "nvidia-nccl-")
"""Names, or prefixes of names, of the distributions whose versions are printed."""


def report() -> dict[str, Any]:
    """Return the versions of PyTorch and its libraries, the number of GPUs, and the errors that torch raised."""
    names = {str(each.metadata["Name"]).lower(): each.version for each in metadata.distributions()}
    result: dict[str, Any] = {"packages": {name: names[name] for name in sorted(names) if name.startswith(WATCHED)}}
    try:
        import torch  # noqa: PLC0415 - its absence is a result
    except Exception as error:  # noqa: BLE001 - a broken installation raises anything
        return {**result, "import_error": f"{type(error).__name__}: {error}"}
    result.update(torch=torch.__version__, cuda=torch.version.cuda)
    if torch.version.cuda is None:
        return result
    # Not torch.cuda.device_count(), which asks NVML: CUDA may fail even so.
    gpus = torch._C._cuda_getDeviceCount()  # noqa: SLF001 - no public name
    result.update(architectures=torch._C._cuda_getArchFlags(), gpus=gpus)  # noqa: SLF001
    try:
        result.update(gpu_error="" if gpus else torch.cuda.init())
    except Exception as error:  # noqa: BLE001 - the text is the result
        result.update(gpu_error=str(error))
    if torch.distributed.is_nccl_available():
        from torch.cuda import nccl  # noqa: PLC0415 - only a build with NCCL has it

        result.update(nccl=".".join(map(str, nccl.version())), nccl_file=mapped_library("libnccl"))
    return result


def mapped_library(name: str) -> str:
    """Return the path of the loaded library whose file name begins with `name`; empty if none is loaded."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.split()[-1] for line in lines if f"/{name}" in line), "")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(report()) + "\n")
