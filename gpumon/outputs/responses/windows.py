"""Responses about time windows."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from typing_extensions import Self

from gpumon.model.time_window import REQUESTERS, TimeWindow, WindowKind, in_force
from gpumon.outputs.formatting import rfc3339
from gpumon.outputs.responses.base import HostTime, ResponseModel, timestamp
from gpumon.state.report import Report


class RequestedResponse(ResponseModel):
    """The client, start and deadline of a time window."""

    by: Literal[REQUESTERS] = Field(description="Client that requested the window.")  # type: ignore[valid-type]
    since: str = timestamp("When the window started.")
    until: str = timestamp("When the window ends, unless it is ended before.")


class HolderResponse(ResponseModel):
    """A process of the agent that has, or may have, a GPU open."""

    pid: int
    message: str = Field(
        validation_alias="description", description="The process, and the call on the GPU that it is in."
    )
    stuck: bool = Field(description="Whether SIGKILL does not end the process.")


class ReleaseWindowResponse(RequestedResponse):
    """A release: a period in which no process of the agent has the GPU open, or any GPU if no GPU is named."""

    gpu: int | None = Field(description="Index of the GPU; null for the whole node.")
    uuid: str | None
    pci_bus_id: str | None
    remaining_seconds: float

    @classmethod
    def from_window(cls, window: TimeWindow, report: Report, now: HostTime) -> Self:
        state = report.gpu(window.bus_id) if window.bus_id else None
        return cls.copied(
            window,
            gpu=None if state is None else state.index,
            uuid=None if state is None else state.uuid,
            pci_bus_id=window.bus_id or None,
            remaining_seconds=round(max(0.0, window.deadline.at - now.boot), 3),
            **_times(window),
        )


class WindowResponse(ReleaseWindowResponse):
    """One time window in force: a release, a hold or a maintenance."""

    id: str
    kind: Literal[tuple(str(kind) for kind in WindowKind)] = Field(  # type: ignore[valid-type]
        description="release: the driver is closed. hold: no probe runs. maintenance: no alert pages."
    )
    owner: str = Field(description="For example the id of a job; empty if none was given.")
    reason: str


class WindowsResponse(ResponseModel):
    """The time windows in force, or those of one kind."""

    windows: list[WindowResponse] = Field(description="Time windows in force, in the order in which they started.")


class ListedWindowsResponse(WindowsResponse):
    """The time windows in force and, for a client with the token, what still has a released GPU open."""

    holders: list[HolderResponse] | None = Field(
        default=None, description="Only with the token: processes of the agent that still have a released GPU open."
    )


class WindowsChangeResponse(WindowsResponse):
    """The time windows of a kind that are in force after a request changed them."""

    stored: bool = Field(description="False: the store failed; the change is written when the store recovers.")


class MaintenanceResponse(RequestedResponse):
    """A maintenance: a period in which no alert pages."""

    reason: str

    @classmethod
    def from_report(cls, report: Report) -> MaintenanceResponse | None:
        """Return the response of the maintenance in force that ends last; None if no maintenance is in force."""
        window = report.maintenance
        return None if window is None else cls.copied(window, **_times(window))


class OwnerHoldResponse(RequestedResponse):
    """The hold of one owner: a period in which no probe runs."""

    owner: str = Field(description="For example the id of a job; empty if none was given.")
    reason: str


class HoldResponse(ResponseModel):
    """All holds in force. No probe runs until the last one ends."""

    until: str = timestamp("When the last hold ends.")
    holders: list[OwnerHoldResponse] = Field(description="Holds by owner, in the order in which they started.")

    @classmethod
    def from_report(cls, report: Report) -> HoldResponse | None:
        """Return one response that lists all holds in force; None if there are none."""
        holds = in_force(report.windows, WindowKind.HOLD)
        if not holds:
            return None
        last = max(window.deadline.wall for window in holds)
        holders = [OwnerHoldResponse.copied(hold, **_times(hold)) for hold in holds]
        return cls(until=rfc3339(last), holders=holders)


def windows(report: Report, now: HostTime, kind: WindowKind | None = None) -> list[WindowResponse]:
    return [WindowResponse.from_window(window, report, now) for window in in_force(report.windows, kind)]


def _times(window: TimeWindow) -> dict[str, str]:
    until = window.deadline.wall
    return {"since": rfc3339(until - window.seconds), "until": rfc3339(until)}
