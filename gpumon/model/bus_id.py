"""PCI addresses in the form in which NVML writes them: "00000000:1B:00.0"."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7])")


def parse_bus_id(text: str) -> str | None:
    """Convert a PCI address of any usual form (1b:00.0, 0000:1b:00.0) to NVML's form; return None for other text.

    FFFFFFFF:FF:FF.0 too counts as other text: NVML returns it for a device on no bus of this host, and device numbers
    on a PCI bus end at 1F.
    """
    address = _ADDRESS.fullmatch(text)
    return None if address is None else f"{int(address[1] or '0', 16):08X}:{address[2].upper()}"


def nvml_bus_id(name: str) -> str:
    """Convert a PCI address of any usual form to NVML's form, like `parse_bus_id`; raise ValueError for other text."""
    bus_id = parse_bus_id(name)
    if bus_id is None:
        raise ValueError(f"{name!r} is no PCI address")
    return bus_id
