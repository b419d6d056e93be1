"""A GPU as the store keeps it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGpu:
    """A GPU that was here, so that it can be identified when it does not answer."""

    uuid: str
    bus_id: str
    serial: str
    name: str
    first_wall: float
    last_wall: float
    """Unix time of the first and of the last reading."""
    gpu: int | None = None
    """Its index in the boot of the last reading."""
    boot_id: str = ""
    vbios: str = ""
    inforom: str = ""
    gsp: str = ""
    nvlinks: int | None = None
    energy: float | None = None
    """Energy counter of the driver in joules: a lower value in the same boot means that the GPU was reset."""
    expected: bool = True
    """False: it was replaced, or the operator accepted that it is gone."""
