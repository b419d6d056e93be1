"""Errors of GPUs and NVSwitches for people and programs: what happened to which device, what it means, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpumon.health.catalogue import RECOVERY_ACTION
from gpumon.model.error_event import AER, NIC, OVERRUN, SXID, XID, Burst
from gpumon.outputs.words import DAY, rfc3339, seconds_between
from gpumon.state.report import Report

MOST_SHOWN = 5


def documents(report: Report, chosen: Sequence[Burst]) -> list[dict[str, Any]]:
    """In reverse: the newest first, where they come newest last."""
    return [_document(report, one) for one in reversed(chosen)]


def _document(report: Report, one: Burst) -> dict[str, Any]:
    """An error with what it means. A GPU that is not in the inventory has no index."""
    states = (state for state in report.gpus if one.uuid == state.uuid or (not one.uuid and one.bus_id == state.bus_id))
    state = next(states, None) if one.kind in {XID, AER} else None
    means = report.catalogue.explain(one)
    return {
        "id": one.id,
        "kind": one.kind,
        "time": rfc3339(one.last_wall),
        "since": rfc3339(one.first_wall),
        "count": one.count,
        "severity": str(means.severity),
        "xid": one.code if one.kind == XID else None,
        "sxid": one.code if one.kind == SXID else None,
        "name": means.name,
        "action": means.action,
        "if_it_recurs": means.if_it_recurs,
        "detail": means.detail,
        "text": one.text if one.code == RECOVERY_ACTION or not one.texts else one.texts[0],
        "gpu": None if state is None else state.index,
        "uuid": one.uuid or (None if state is None else state.uuid),
        "pci_bus_id": one.bus_id or None,
        "gpu_instance_id": one.gpu_instance_id,
        "compute_instance_id": one.compute_instance_id,
        "sources": list(one.sources),
        "historical": one.historical,
        "cancelled": rfc3339(one.cancelled_wall),
    }


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
