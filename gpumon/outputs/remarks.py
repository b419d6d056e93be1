"""TABLE: what about a GPU that answers is worth a second look; a healthy one has no remark."""

from __future__ import annotations

from collections.abc import Callable

from gpumon.health import recovery
from gpumon.outputs.connections import fabric_trouble
from gpumon.outputs.responses.base import Document
from gpumon.outputs.words import count

SLOWING = ("hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal")
"""Clock event reasons that do not belong to normal work."""


def remarks(gpu: Document) -> list[str]:
    return [words for remark in REMARKS if (words := remark(gpu))]


def _recovery(gpu: Document) -> str:
    action = gpu["recovery_action"]
    return f"the driver asks for {recovery.of(action).words}" if action else ""


def _chip_to_chip(gpu: Document) -> str:
    down = [str(link["link"]) for link in gpu["c2c_links"] if link["up"] == 0]
    return f"chip-to-chip link{'s' if len(down) > 1 else ''} {', '.join(down)} down" if down else ""


def _slowed(gpu: Document) -> str:
    reasons = [reason for reason in SLOWING if (gpu["clock_event_active"] or {}).get(reason)]
    return f"slowed by {', '.join(reasons)}" if reasons else ""


def _uncorrected(gpu: Document) -> str:
    errors = sum(number or 0 for number in (gpu["ecc_errors_total"] or {}).get("uncorrected", {}).values())
    return f"{count(errors)} uncorrected ECC error{'s' if errors > 1 else ''}" if errors else ""


def _remap(gpu: Document) -> str:
    if gpu["row_remap_failed"]:
        return "a row could not be remapped"
    return "a row waits for a reset to be remapped" if gpu["row_remap_pending"] else ""


def _narrow(gpu: Document) -> str:
    width, full = gpu["pcie_link_width"], gpu["pcie_link_width_max"]
    return f"PCIe x{count(width)} of x{count(full)}" if width is not None and full and width < full else ""


def _xids(gpu: Document) -> str:
    seen = {xid: number for xid, number in (gpu["xid_errors_total"] or {}).items() if number}
    return ", ".join(f"Xid {xid} ({count(number)})" for xid, number in seen.items())


REMARKS: tuple[Callable[[Document], str], ...] = (
    _recovery,
    fabric_trouble,
    _chip_to_chip,
    _slowed,
    _uncorrected,
    _remap,
    _narrow,
    _xids,
)
