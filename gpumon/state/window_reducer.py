"""Updates the time windows of the Report after requests, after the store is read, and as time passes. Pure."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from gpumon.model import time_window
from gpumon.model.now import Now
from gpumon.model.time_window import Windows
from gpumon.state import released_gpus
from gpumon.state.messages import StoredState
from gpumon.state.report import Report


def restore(windows: Windows, stored: StoredState) -> Windows:
    """Return the windows merged with the stored ones.

    A window that started before the store was read replaces a stored window with the same slot.
    """
    return reduce(time_window.start, windows, stored.windows)


def apply(report: Report, windows: Windows, now: Now) -> Report:
    """Return the Report with these windows, advanced to the time `now`, and with `resuming` updated for releases."""
    before = report.windows
    after = time_window.advance(windows, now, report.boot_id)
    if after is before:
        return report
    internal = released_gpus.follow(
        report.internal, time_window.released_scopes(before), time_window.released_scopes(after), uptime=now.uptime
    )
    return replace(report, windows=after, internal=internal)
