"""Reduce requests, the stored windows and the passing of time to the windows of the Report. Pure."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from gpumon.model import time_window
from gpumon.model.now import Now
from gpumon.model.time_window import TimeWindow, Windows, WindowsEnded
from gpumon.state import released_gpus
from gpumon.state.messages import Message, StoredState
from gpumon.state.report import Report


def take(report: Report, message: Message, now: Now) -> Report:
    """Return the report with its windows after this message, at this time."""
    before = report.windows
    after = time_window.advance(_changed(before, message), now, report.boot_id)
    if after is before:
        return report
    internal = released_gpus.follow(
        report.internal, time_window.released(before), time_window.released(after), uptime=now.uptime
    )
    return replace(report, windows=after, internal=internal)


def _changed(windows: Windows, message: Message) -> Windows:
    match message:
        case TimeWindow():
            return time_window.start(windows, message)
        case WindowsEnded():
            return time_window.end(windows, message)
        case StoredState():  # windows that were started before the store was read are newer than the stored ones
            return reduce(time_window.start, windows, message.windows)
        case _:
            return windows
