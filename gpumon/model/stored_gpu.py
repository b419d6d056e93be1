"""A GPU as the store keeps it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGpu:
    """A GPU that was here once, so that it can be named when it does not answer."""

    uuid: str
    bus_id: str
    serial: str
    name: str
    first_wall: float
    last_wall: float
    """Seconds since the epoch at which it was seen first, and last."""
    gpu: int | None = None
    """Its index in the boot in which it was seen last."""
    boot_id: str = ""
    vbios: str = ""
    inforom: str = ""
    gsp: str = ""
    nvlinks: int | None = None
    energy: float | None = None
    """Joules by the driver's counter: less of it in the same boot means that the counter began anew."""
    expected: bool = True
    """False: it was replaced, or a person has accepted that it is gone."""
