"""Short warnings about a GPU that is up, from its API response. A healthy GPU has no warnings."""

from __future__ import annotations

from collections.abc import Callable

from gpumon.health.xid_texts import recovery_of
from gpumon.outputs.formatting import count
from gpumon.outputs.link_text import fabric_fault
from gpumon.outputs.responses.base import Document

SLOWDOWN_REASONS = ("hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal")
"""Clocks event reasons that do not occur in normal operation."""


def gpu_warnings(gpu: Document) -> list[str]:
    return [text for warning in WARNINGS if (text := warning(gpu))]


def _recovery_action(gpu: Document) -> str:
    action = gpu["recovery_action"]
    return f"the driver requests {recovery_of(action).words}" if action else ""


def _c2c_links(gpu: Document) -> str:
    down = [str(link["link"]) for link in gpu["c2c_links"] if link["up"] == 0]
    return f"chip-to-chip link{'s' if len(down) > 1 else ''} {', '.join(down)} down" if down else ""


def _slowdown(gpu: Document) -> str:
    reasons = [reason for reason in SLOWDOWN_REASONS if (gpu["clock_event_active"] or {}).get(reason)]
    return f"slowed by {', '.join(reasons)}" if reasons else ""


def _uncorrected_errors(gpu: Document) -> str:
    errors = sum(number or 0 for number in (gpu["ecc_errors_total"] or {}).get("uncorrected", {}).values())
    return f"{count(errors)} uncorrected ECC error{'s' if errors > 1 else ''}" if errors else ""


def _row_remapping(gpu: Document) -> str:
    if gpu["row_remap_failed"]:
        return "row remapping failed"
    return "row remapping pending: a reset is needed" if gpu["row_remap_pending"] else ""


def _pcie_width(gpu: Document) -> str:
    width, full = gpu["pcie_link_width"], gpu["pcie_link_width_max"]
    return f"PCIe x{count(width)} of x{count(full)}" if width is not None and full and width < full else ""


def _xids(gpu: Document) -> str:
    counts = {xid: number for xid, number in (gpu["xid_errors_total"] or {}).items() if number}
    times = {1: "once"}
    return "; ".join(f"Xid {xid}, {times.get(number) or f'{count(number)} times'}" for xid, number in counts.items())


WARNINGS: tuple[Callable[[Document], str], ...] = (
    _recovery_action,
    fabric_fault,
    _c2c_links,
    _slowdown,
    _uncorrected_errors,
    _row_remapping,
    _pcie_width,
    _xids,
)
