"""Time windows for tests."""

from __future__ import annotations

import itertools

from gpumon.model.instant import Instant
from gpumon.model.time_window import COMMAND, NODE, TimeWindow, WindowKind

HOLD, MAINTENANCE, RELEASE = WindowKind.HOLD, WindowKind.MAINTENANCE, WindowKind.RELEASE
_numbers = itertools.count()


def window(
    kind: WindowKind,
    *,
    start: float,
    start_at: float,
    seconds: float,
    bus_id: str = NODE,
    owner: str = "",
    reason: str = "",
    by: str = COMMAND,
    boot_id: str = "",
) -> TimeWindow:
    """Return a window in force with an id of its own."""
    return TimeWindow(
        id=f"window-{next(_numbers)}",
        kind=kind,
        bus_id=bus_id,
        owner=owner,
        reason=reason,
        by=by,
        started=Instant(boot_id, start_at, start),
        deadline=Instant(boot_id, start_at + seconds, start + seconds),
    )
