"""Patterns that name network adapters by device, PCI address or board id, as in the configuration."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpumon.model.bus_id import parse_bus_id


@dataclass(frozen=True, slots=True, kw_only=True)
class PortPatterns:
    """The adapters that the configuration names."""

    exclude: tuple[str, ...] = ()
    """Adapters that are not monitored."""
    fabric: tuple[str, ...] = ()
    """Adapters of the fabric; empty to determine them by link layer, position and speed."""


def matches(patterns: Collection[str], device: str, bus_id: str, board: str) -> bool:
    """Return True if a pattern matches the device name, the PCI address in any form, or the board id."""
    addresses = (bus_id, bus_id[4:]) if bus_id else ()
    names = [name.lower() for name in (device, board, *addresses) if name]
    return any(
        parse_bus_id(pattern) == bus_id or any(fnmatchcase(name, pattern.lower()) for name in names)
        for pattern in patterns
    )
