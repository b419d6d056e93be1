"""PCI addresses of GPUs in NVML's spelling, "00000000:1B:00.0": what GPUs are known by before they tell their uuid."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")


def parsed(text: str) -> str | None:
    """A PCI address as anybody writes it (1b:00.0, 0000:1b:00.0) in NVML's spelling; None for anything else."""
    address = _ADDRESS.fullmatch(text)
    return None if address is None else f"{int(address[1] or '0', 16):08X}:{address[2].upper()}"


def nvml_bus_id(name: str) -> str:
    """`0000:1b:00.0`, as the kernel names it. Raises ValueError for what is no PCI address."""
    found = parsed(name)
    if found is None:
        raise ValueError(f"{name!r} is no PCI address")
    return found
