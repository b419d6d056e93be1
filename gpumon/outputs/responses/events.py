"""Responses about stored errors of devices, and about the audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from gpumon.health.alert_texts import SEVERITIES
from gpumon.health.catalogue import RECOVERY_ACTION
from gpumon.model.error_event import AER, KINDS, SOURCES, SXID, XID, ErrorEvent
from gpumon.model.gpu_state import GpuState
from gpumon.outputs.formatting import rfc3339
from gpumon.outputs.responses.base import ResponseModel, Timestamp, timestamp
from gpumon.state.report import Report


class EventResponse(ResponseModel):
    """One error, or a burst: repetitions of the same error, each at most three minutes after the one before."""

    id: str
    kind: Literal[KINDS] = Field(  # type: ignore[valid-type]
        description="xid: error of a GPU. sxid: error of an NVSwitch. overrun: records of the kernel log were lost. "
        "aer: uncorrected error of a PCIe device. nic: error of a network adapter. "
        "driver: error of NVIDIA's driver without a device."
    )
    time: str = timestamp("When the event last occurred.")
    since: str = timestamp("When the event first occurred.")
    count: int = Field(description="How often the event occurred.")
    severity: Literal[SEVERITIES] = Field(description="Severity of the code on this host.")  # type: ignore[valid-type]
    xid: int | None
    sxid: int | None
    name: str = Field(description="Short description of the code.")
    action: str = Field(description="What to do about the event.")
    if_it_recurs: str = Field(description="What to do if it occurs again.")
    detail: str = Field(description="Meaning of the numbers in the text; empty if there is none.")
    text: str = Field(description="Text of the kernel log without names and ids of processes; empty if there is none.")
    gpu: int | None = Field(description="Index of the GPU; null if the GPU is not in the inventory.")
    uuid: str | None = Field(description="UUID of the GPU, also if the GPU was last read before the host was booted.")
    pci_bus_id: str | None = Field(description="Address of the GPU, NVSwitch, adapter or PCIe port.")
    gpu_instance_id: int | None = Field(description="MIG instance of the GPU, if it is reported.")
    compute_instance_id: int | None
    sources: list[Literal[SOURCES]] = Field(description="The sources that reported it.")  # type: ignore[valid-type]
    historical: bool = Field(description="It is older than the first start of the agent; it is counted nowhere.")
    cancelled: str | None = timestamp("When another Xid ended it.")

    @classmethod
    def from_burst(cls, event: ErrorEvent, report: Report) -> EventResponse:
        state, meaning = _gpu_of(event, report), report.catalogue.explain(event)
        return cls(
            id=event.id,
            kind=event.kind,
            time=rfc3339(event.last.wall),
            since=rfc3339(event.first.wall),
            count=event.count,
            severity=str(meaning.severity),
            xid=event.code if event.kind == XID else None,
            sxid=event.code if event.kind == SXID else None,
            name=meaning.name,
            action=meaning.action,
            if_it_recurs=meaning.if_it_recurs,
            detail=meaning.detail,
            text=event.text if event.code == RECOVERY_ACTION or not event.texts else event.texts[0],
            gpu=None if state is None else state.index,
            uuid=event.uuid or (None if state is None else state.uuid),
            pci_bus_id=event.bus_id or None,
            gpu_instance_id=event.gpu_instance_id,
            compute_instance_id=event.compute_instance_id,
            sources=list(event.sources),
            historical=event.historical,
            cancelled=rfc3339(event.cancelled_wall),
        )


class EventsResponse(ResponseModel):
    """Stored errors that match the request."""

    events: list[EventResponse] = Field(description="Newest first.")
    complete: bool = Field(description="False: the store did not answer, and only the newest errors were searched.")


def newest_first(report: Report, events: Sequence[ErrorEvent]) -> list[EventResponse]:
    """Return the responses of bursts of errors, newest first. `events` is ordered oldest first."""
    return [EventResponse.from_burst(event, report) for event in reversed(events)]


def _gpu_of(event: ErrorEvent, report: Report) -> GpuState | None:
    """Return the GPU of an Xid or AER error, found by UUID or else by PCI address."""
    if event.kind not in {XID, AER}:
        return None
    same = (s for s in report.gpus if event.uuid == s.uuid or (not event.uuid and event.bus_id == s.bus_id))
    return next(same, None)


class AuditEntryResponse(ResponseModel):
    """One request to change the state of the agent or to start work, which may have failed (see `status`)."""

    time: Timestamp | None = timestamp("When the request was answered.", attribute="wall")
    request: str = Field(description="Method and path with parameters, the signal, or the marker file.")
    reason: str = Field(description="Reason or note that the client gave; empty without one.")
    client: str = Field(description="`local` for the unix socket, `signal`, `marker`, else the address.")
    uid: int | None = Field(description="User of a local client, or owner of the marker file; else null.")
    login_uid: int | None = Field(description="User who logged in to the session of a local client, also after sudo.")
    status: int | None = Field(description="HTTP status of the answer; null for a signal or the marker file.")


class AuditResponse(ResponseModel):
    """Requests to change the state of the agent or to start work, newest first.

    These are the authorized HTTP requests other than GET, HEAD and OPTIONS, whatever the status of the answer, SIGHUP,
    and uses of the marker file.
    """

    entries: list[AuditEntryResponse]
