"""Patterns that match network adapters by device name, PCI address or board id, as the configuration has them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpumon.model.bus_id import parse_bus_id


@dataclass(frozen=True, slots=True, kw_only=True)
class PortPatterns:
    """Patterns of network adapters from the section `links` of the configuration."""

    exclude: tuple[str, ...] = ()
    """Patterns of adapters that are not monitored."""
    fabric: tuple[str, ...] = ()
    """Patterns of the fabric's adapters. If empty, an adapter's link layer, PCIe position and speed decide."""


def matches(patterns: Collection[str], device: str, bus_id: str, board: str) -> bool:
    """Return True if a pattern matches the device name, the PCI address `bus_id` or the board id, ignoring case.

    A PCI address without wildcards may have any form (see `parse_bus_id`). With wildcards, its domain has 8 digits, or
    as many as in the kernel's form.
    """
    addresses = (bus_id, bus_id[:4].lstrip("0") + bus_id[4:])  # 00010000:01:00.0 is 10000:01:00.0 in the kernel's form
    names = [name.lower() for name in (device, board, *addresses) if name]
    return any(
        parse_bus_id(pattern) == bus_id or any(fnmatchcase(name, pattern.lower()) for name in names)
        for pattern in patterns
    )
