"""Errors of GPUs and NVSwitches for people and programs: what happened to which device, what it means, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpumon.model.error_event import AER, NIC, OVERRUN, SXID, XID
from gpumon.outputs.words import DAY, seconds_between

MOST_SHOWN = 5


def recent(events: Sequence[Mapping[str, Any]], now: str) -> list[Mapping[str, Any]]:
    """Of documents, newest first, those that an operator should know of now: of the last day, and not yet over."""
    return [
        one
        for one in events
        if not one["historical"] and one["cancelled"] is None and (seconds_between(one["time"], now) or 0.0) <= DAY
    ]


def title(event: Mapping[str, Any]) -> str:
    """What happened to which device, in words."""
    if event["kind"] == OVERRUN:
        return str(event["name"])
    if event["kind"] == AER:
        return f"{event['name']} of {_gpu(event) if event['gpu'] is not None else event['pci_bus_id']}"
    if event["kind"] == NIC:
        return f"{event['name']}: {event['pci_bus_id']}"
    number = f"Xid {event['xid']}" if event["kind"] == XID else f"SXid {event['sxid']}"
    device = f"NVSwitch {event['pci_bus_id']}" if event["kind"] == SXID else _gpu(event)
    return f"{number} on {device}: {event['name']}"


def when(event: Mapping[str, Any]) -> str:
    """The last time, and how often since when."""
    day, clock = event["time"][:10], event["time"][11:19]
    if event["count"] == 1:
        return f"{day} {clock} UTC"
    return f"{event['count']} times from {event['since'][:10]} {event['since'][11:19]} to {day} {clock} UTC"


def advice(event: Mapping[str, Any]) -> Iterator[str]:
    """What the line's numbers say and what to do, in sentences."""
    if event["detail"]:
        yield str(event["detail"])
    yield f"Do: {event['action']}"


def _gpu(event: Mapping[str, Any]) -> str:
    return f"GPU {event['gpu']}" if event["gpu"] is not None else f"the GPU at {event['pci_bus_id']}"
