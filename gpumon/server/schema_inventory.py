"""The shapes of /api/v1/inventory."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpumon.health.expectation import Basis
from gpumon.model.snapshot import PLACES
from gpumon.outputs.inventory import PORT_STATES, SOURCES
from gpumon.server.shape import Shape, moment
from gpumon.state.report import Left


class InventoryGpu(Shape):
    """One GPU that should be here."""

    gpu: int | None = Field(description="Its index in the boot in which it was seen last.")
    uuid: str
    state: str | None = Field(description="As of /api/v1/gpus: `up`, `missing`, ...")
    detail: str
    name: str | None
    serial: str | None
    pci_bus_id: str = Field(description="Where it is, or was seen last.")
    nvlinks: int | None
    vbios: str | None
    inforom: str | None
    gsp: str | None
    first_seen: str | None = moment("When it was seen first.")
    last_seen: str | None = moment("When it was seen last.")


class InventoryPort(Shape):
    """One InfiniBand or RoCE port that is here, or should be."""

    device: str = Field(description="A missing one whose name another has by now goes by its PCI address.")
    port: str
    state: Literal[PORT_STATES] | None = Field(  # type: ignore[valid-type]
        description="`down` and `missing`: it was in use, and should be up; `unwired`: it never was; `accepted`: it is "
        "down, and somebody has accepted that."
    )
    link_layer: str
    gigabits_per_second: int | None = Field(description="With which it was up last.")
    pci_bus_id: str | None = Field(description="Where it is, or was seen last.")
    board: str | None
    firmware: str | None
    guid: str | None = Field(description="Node GUID of its card.")
    first_up: str | None = moment("When it was seen up first.")
    last_up: str | None = moment("When it was seen up last.")


class GoneGpu(Shape):
    """One that was here, and is not missed."""

    uuid: str
    pci_bus_id: str
    why: Literal[tuple(one.value for one in Left)]  # type: ignore[valid-type]
    why_words: str


class Inventory(Shape):
    """The GPUs and the ports that should be here."""

    source: Literal[SOURCES]  # type: ignore[valid-type]
    place: Literal[PLACES] | None = Field(description="Where the agent runs.")  # type: ignore[valid-type]
    gpus_expected: int
    basis: Literal[tuple(one.value for one in Basis)] = Field(  # type: ignore[valid-type]
        description="Who says so many."
    )
    basis_words: str
    gpus_visible: int | None = Field(description="What the driver counts.")
    gpus_possible: int | None = Field(
        description="More than expected: what a guest or a container cannot know to be its own."
    )
    unlisted: list[str] = Field(description="PCI addresses of GPUs on the bus that the driver does not list.")
    gpus: list[InventoryGpu]
    ports: list[InventoryPort]
    gone: list[GoneGpu]
