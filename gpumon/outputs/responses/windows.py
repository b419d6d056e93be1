"""Responses about time windows: releases, holds and maintenance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from gpumon.model import hold, maintenance, release, time_window
from gpumon.outputs.formatting import rfc3339
from gpumon.outputs.responses.base import HostTime, ResponseModel, timestamp
from gpumon.state.report import Report


class ReleaseWindowResponse(ResponseModel):
    """A time in which the agent keeps one GPU, or the whole node, closed."""

    gpu: int | None = Field(description="Index of the GPU; null for the whole node.")
    uuid: str | None
    pci_bus_id: str | None
    by: Literal[release.ASKERS] = Field(description="Which client requested it.")  # type: ignore[valid-type]
    since: str = timestamp("When it began.")
    until: str = timestamp("When it ends by itself.")
    remaining_seconds: float

    @classmethod
    def from_window(cls, window: release.Window, report: Report, now: HostTime) -> ReleaseWindowResponse:
        state = report.gpu(window.bus_id) if window.bus_id else None
        return cls(
            gpu=None if state is None else state.index,
            uuid=None if state is None else state.uuid,
            pci_bus_id=window.bus_id or None,
            by=window.by,
            since=rfc3339(window.since),
            until=rfc3339(window.until),
            remaining_seconds=round(max(0.0, window.deadline - now.boot), 3),
        )


class ReleaseResponse(ResponseModel):
    """The releases that are active."""

    released: bool
    windows: list[ReleaseWindowResponse]
    holders: list[str] | None = Field(
        default=None, description="Only with the token: processes of the agent that still hold a released GPU."
    )

    @classmethod
    def from_report(cls, report: Report, now: HostTime) -> ReleaseResponse:
        windows = [ReleaseWindowResponse.from_window(window, report, now) for window in report.release.windows]
        return cls(released=bool(windows), windows=windows)


class MaintenanceResponse(ResponseModel):
    """A time in which no alert pages."""

    since: str = timestamp("When it began.")
    until: str = timestamp("When it ends by itself.")
    reason: str
    by: Literal[time_window.ASKERS] = Field(description="Which client requested it.")  # type: ignore[valid-type]

    @classmethod
    def from_report(cls, report: Report) -> MaintenanceResponse | None:
        """Return the maintenance window that is active, or None."""
        return None if report.maintenance is None else cls.from_window(report.maintenance)

    @classmethod
    def from_window(cls, window: maintenance.Maintenance) -> MaintenanceResponse:
        return cls(
            since=rfc3339(window.until - window.seconds),
            until=rfc3339(window.until),
            reason=window.reason,
            by=window.by,
        )


class MaintenanceStateResponse(ResponseModel):
    """Whether the node is in maintenance."""

    maintenance: MaintenanceResponse | None = Field(description="The window that is active; null if there is none.")


class MaintenanceChangeResponse(MaintenanceStateResponse):
    """The maintenance window after a change."""

    stored: bool = Field(description="False: the store failed; the change is written when the store recovers.")


class HolderResponse(ResponseModel):
    """One owner of a hold."""

    owner: str = Field(description="For example the number of a job; empty if none was given.")
    reason: str
    by: Literal[time_window.ASKERS] = Field(description="Which client requested it.")  # type: ignore[valid-type]
    since: str = timestamp("When it began.")
    until: str = timestamp("When it ends by itself.")

    @classmethod
    def from_hold(cls, window: hold.Hold) -> HolderResponse:
        return cls(
            owner=window.owner,
            reason=window.reason,
            by=window.by,
            since=rfc3339(window.until - window.seconds),
            until=rfc3339(window.until),
        )


class HoldResponse(ResponseModel):
    """A time in which no probe runs."""

    until: str = timestamp("When the last of the holds ends by itself.")
    holders: list[HolderResponse] = Field(description="In the order in which they began.")

    @classmethod
    def from_report(cls, report: Report) -> HoldResponse | None:
        """Return all holds that are active, or None."""
        return cls.from_holds(hold.in_force(report.holds))

    @classmethod
    def from_holds(cls, holds: Sequence[hold.Hold]) -> HoldResponse | None:
        """Return these holds, or None if there are none."""
        if not holds:
            return None
        last = max(window.until for window in holds)
        return cls(until=rfc3339(last), holders=[HolderResponse.from_hold(window) for window in holds])


class HoldStateResponse(ResponseModel):
    """Whether probes are held."""

    hold: HoldResponse | None = Field(description="The holds that are active; null if there are none.")


class HoldChangeResponse(HoldStateResponse):
    """The holds after a change."""

    stored: bool = Field(description="False: the store failed; the change is written when the store recovers.")
