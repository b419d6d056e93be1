"""The section `windows`: releases, holds and maintenances in force, and the last windows that have ended. Pure."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator

from gpumon.model import time_window
from gpumon.model.durations import utc
from gpumon.model.time_window import TimeWindow, WindowKind, Windows, WindowsEnded, in_force
from gpumon.state.messages import StoredState
from gpumon.state.report import Report
from gpumon.state.section import LogLine, Step


def apply(windows: Windows, step: Step) -> Windows:
    """Return the windows after a message, without those in force whose deadline has passed."""
    match step.message:
        case TimeWindow():
            windows = time_window.start(windows, step.message)
        case WindowsEnded():
            windows = time_window.end(windows, step.message)
        case StoredState():
            # A window that started before the store was read replaces a stored window with the same slot.
            windows = functools.reduce(time_window.start, windows, step.message.windows)
    return time_window.advance(windows, step.now, step.report.boot_id)


_INHIBITED = {
    WindowKind.RELEASE: "the agent closes the driver",
    WindowKind.HOLD: "no probe runs",
    WindowKind.MAINTENANCE: "no alert pages",
}


def changes(before: Report, after: Report) -> Iterator[LogLine]:
    """Yield a line for each time window that started, was replaced, ended, or continues after an agent restart."""
    if before.windows is after.windows:
        return
    old, new = ({window.slot: window for window in in_force(report.windows)} for report in (before, after))
    verb = "started" if before.agent.restored is after.agent.restored else "continues"
    for slot, window in new.items():
        if slot not in old:
            message = f"{window.kind} {verb}: {_INHIBITED[window.kind]}"
            yield LogLine(logging.INFO, message, _window(window, after))
        elif old[slot].id != window.id:
            yield LogLine(logging.INFO, f"{window.kind} replaced", _window(window, after))
    ended = {window.id: window for window in after.windows if window.ended is not None}
    for slot, window in old.items():
        if slot not in new and window.id in ended:
            words = _window(window, after) | {"ended_by": ended[window.id].ended_by}
            yield LogLine(logging.INFO, f"{window.kind} ended", words)


def _window(window: TimeWindow, report: Report) -> dict[str, object]:
    until = utc(window.deadline.wall).isoformat(timespec="seconds")
    words = {"owner": window.owner, "by": window.by, "reason": window.reason, "until": until}
    if window.kind is WindowKind.RELEASE:
        gpu = report.gpu(window.bus_id) if window.bus_id else None
        words["gpu"] = window.bus_id or "all" if gpu is None else f"{gpu.index} ({gpu.uuid})"
    return {name: word for name, word in words.items() if word}
