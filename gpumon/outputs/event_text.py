"""Text and a table about errors of GPUs, NVSwitches, adapters and PCIe devices, from the event responses of the API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpumon.model.error_event import AER, DRIVER, NIC, OVERRUN, SXID
from gpumon.outputs.formatting import DAY, columns, seconds_between

MAX_SHOWN = 5
NO_EVENTS = "No event is stored that matches."
TITLES = ("LAST", "SEVERITY", "DEVICE", "TIMES", "EVENT")


def recent(events: Sequence[Mapping[str, Any]], now: str) -> list[Mapping[str, Any]]:
    """Return the events of the 24 hours before `now` (RFC 3339).

    Omit events from before the agent's first start (historical) and those whose end another Xid reported (cancelled).
    """
    return [
        event
        for event in events
        if not event["historical"]
        and event["cancelled"] is None
        and (seconds_between(event["time"], now) or 0.0) <= DAY
    ]


def title(event: Mapping[str, Any]) -> str:
    """Return a title for an event: what happened, with the Xid or SXid code and the device if the event has them."""
    if event["kind"] in {OVERRUN, DRIVER}:
        return str(event["name"])
    if event["kind"] == AER:
        return f"{event['name']} of {_gpu(event) if event['gpu'] is not None else event['pci_bus_id']}"
    if event["kind"] == NIC:
        return f"{event['name']}: {event['pci_bus_id']}"
    device = f"NVSwitch {event['pci_bus_id']}" if event["kind"] == SXID else _gpu(event)
    return f"{code(event)} on {device}: {event['name']}"


def code(event: Mapping[str, Any]) -> str:
    """Return the code of an event, such as "Xid 79" or "SXid 20034"; an empty string if it has none."""
    if event["xid"] is not None:
        return f"Xid {event['xid']}"
    return "" if event["sxid"] is None else f"SXid {event['sxid']}"


def occurrence(event: Mapping[str, Any]) -> str:
    """Return when an event occurred, as text: its time or, for a burst, the number of errors, first and last time."""
    day, clock = event["time"][:10], event["time"][11:19]
    if event["count"] == 1:
        return f"{day} {clock} UTC"
    return f"{event['count']} times from {event['since'][:10]} {event['since'][11:19]} to {day} {clock} UTC"


def advice(event: Mapping[str, Any]) -> Iterator[str]:
    """Yield a text on the numbers in the event's kernel message, if their meaning is documented, then what to do."""
    if event["detail"]:
        yield str(event["detail"])
    yield f"Do: {event['action']}"


def event_table(events: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with a line for each event, in the given order; NO_EVENTS if there are none."""
    return "\n".join(columns([TITLES, *([*_cells(event)] for event in events)])) if events else NO_EVENTS


def _cells(event: Mapping[str, Any]) -> Iterator[str]:
    yield f"{event['time'][:10]} {event['time'][11:19]}Z"
    yield event["severity"]
    yield f"GPU {event['gpu']}" if event["gpu"] is not None else event["pci_bus_id"] or "-"
    yield str(event["count"])
    numbered = ": ".join(filter(None, (code(event), event["name"])))
    yield f"{numbered}{' (before the agent was installed)' if event['historical'] else ''}"


def _gpu(event: Mapping[str, Any]) -> str:
    return f"GPU {event['gpu']}" if event["gpu"] is not None else f"the GPU at {event['pci_bus_id']}"
