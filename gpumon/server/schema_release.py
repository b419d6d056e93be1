"""The shapes of what an operator asks for: releases and maintenance."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpumon.model.release import ASKERS
from gpumon.model.time_window import ASKERS as SPAN_ASKERS
from gpumon.server.shape import Shape, moment


class ReleaseWindow(Shape):
    """A while for which the agent keeps off one GPU or the whole node."""

    gpu: int | None = Field(description="Index of the GPU; null: the whole node.")
    uuid: str | None
    pci_bus_id: str | None
    by: Literal[ASKERS] = Field(description="Who asked.")  # type: ignore[valid-type]
    since: str = moment("When it began.")
    until: str = moment("When it ends by itself.")
    remaining_seconds: float


class Release(Shape):
    """What the agent keeps off now."""

    released: bool
    windows: list[ReleaseWindow]
    holders: list[str] | None = Field(
        default=None, description="Only with the token: processes of the agent that still hold what is released."
    )


class Maintenance(Shape):
    """A while in which no alert pages."""

    since: str = moment("When it began.")
    until: str = moment("When it ends by itself.")
    reason: str
    by: Literal[SPAN_ASKERS] = Field(description="Who asked.")  # type: ignore[valid-type]


class MaintenanceState(Shape):
    """Whether the node is in maintenance."""

    maintenance: Maintenance | None = Field(description="The one in force.")


class MaintenanceChanged(MaintenanceState):
    """What became of the request."""

    stored: bool = Field(description="False: the store is out of order, and is told when it can be written again.")
