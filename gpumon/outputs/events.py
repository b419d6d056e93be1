"""Stored errors as a table for a terminal, from the responses of the API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpumon.outputs.formatting import columns
from gpumon.outputs.responses.base import Document

NO_EVENTS = "No event is stored that matches."
TITLES = ("LAST", "SEVERITY", "DEVICE", "TIMES", "EVENT")


def event_table(events: Sequence[Document]) -> str:
    """Return a table with a line for each event, in the given order; NO_EVENTS if there are none."""
    return "\n".join(columns([TITLES, *([*_cells(event)] for event in events)])) if events else NO_EVENTS


def _cells(event: Document) -> Iterator[str]:
    yield f"{event['time'][:10]} {event['time'][11:19]}Z"
    yield event["severity"]
    yield f"GPU {event['gpu']}" if event["gpu"] is not None else event["pci_bus_id"] or "-"
    yield str(event["count"])
    code = f"Xid {event['xid']}: " if event["xid"] is not None else ""
    code = f"SXid {event['sxid']}: " if event["sxid"] is not None else code
    yield f"{code}{event['name']}{' (before the agent was installed)' if event['historical'] else ''}"
