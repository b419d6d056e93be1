"""Text about errors of GPUs, NVSwitches, network adapters and PCIe devices, from the event responses of the API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpumon.model.error_event import AER, DRIVER, NIC, OVERRUN, SXID, XID
from gpumon.outputs.formatting import DAY, seconds_between

MAX_SHOWN = 5


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
    code = f"Xid {event['xid']}" if event["kind"] == XID else f"SXid {event['sxid']}"
    device = f"NVSwitch {event['pci_bus_id']}" if event["kind"] == SXID else _gpu(event)
    return f"{code} on {device}: {event['name']}"


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


def _gpu(event: Mapping[str, Any]) -> str:
    return f"GPU {event['gpu']}" if event["gpu"] is not None else f"the GPU at {event['pci_bus_id']}"
