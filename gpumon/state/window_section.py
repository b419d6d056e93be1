"""The section `windows`: releases, holds and maintenances in force, and the last windows that have ended. Pure."""

from __future__ import annotations

import functools

from gpumon.model import time_window
from gpumon.model.time_window import TimeWindow, Windows, WindowsEnded
from gpumon.state.messages import StoredState
from gpumon.state.section import Step


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
