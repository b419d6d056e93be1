"""Sample errors as the store and the Report hold them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpumon.model.error_event import KMSG, NVML, XID, ErrorChange, ErrorEvent, ErrorObservation
from gpumon.model.instant import Instant

WALL = 2e9
BUS_ID = "00000000:18:00.0"


def error_event(
    number: int,
    code: int = 79,
    uuid: str | None = "GPU-1",
    *,
    boot_id: str = "boot-1",
    last_at: float | None = None,
    first_wall: float | None = None,
    last_wall: float | None = None,
    **values: Any,
) -> ErrorEvent:
    """Return an Xid, by default `number` seconds after the boot."""
    at, wall = float(number), WALL + number
    plain = ErrorEvent(
        id=f"b{number}",
        kind=XID,
        code=code,
        bus_id=BUS_ID,
        uuid=uuid,
        first=Instant(boot_id, at, wall if first_wall is None else first_wall),
        last=Instant(boot_id, at if last_at is None else last_at, wall if last_wall is None else last_wall),
        nvml=1,
    )
    return replace(plain, **values)


def change(number: int, code: int = 79, uuid: str | None = "GPU-1", **values: Any) -> ErrorChange:
    """Return a new burst."""
    one = error_event(number, code, uuid, **values)
    return ErrorChange(one, one.count)


def observation(at: float, source: str = NVML, code: int = 79, **values: Any) -> ErrorObservation:
    """Return one observation of an Xid, from NVML, or with text from the kernel log."""
    text = "GPU has fallen off the bus." if source == KMSG else ""
    plain = ErrorObservation(
        kind=XID, code=code, bus_id=BUS_ID, at=at, since=at, wall=WALL + at, source=source, text=text, uuid="GPU-1"
    )
    return replace(plain, **values)
