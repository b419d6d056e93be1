"""Sentences about time windows (releases, maintenance, holds) for the page, the terminal and the commands."""

from __future__ import annotations

from gpumon.outputs.formatting import MINUTE, duration, seconds_between
from gpumon.outputs.responses.base import Document

CLOCK_TOLERANCE_SECONDS = 60.0
"""A sentence mentions that the wall clock contradicts a time window if they differ by more than these seconds."""
MAX_HOLDS = 3
"""Maximum number of holds that a sentence names."""


def releases(windows: list[Document]) -> list[str]:
    """Return a list with one sentence for each of these windows, which release GPUs."""
    return [_release(window) for window in windows]


def maintenance(window: Document | None, now: str | None = None) -> list[str]:
    """Return a list with one sentence about the maintenance window; an empty list if there is no window.

    If `now`, the time of the response, is given, the sentence includes the remaining time.
    """
    if window is None:
        return []
    end = f"{_end(window['until'])}{_remaining_time(window, now)}"
    return [f"In maintenance until {end}, by {window['by']}: {window['reason'].rstrip('.')}. No alert pages."]


def holds(windows: list[Document], now: str | None = None) -> list[str]:
    """Return a list with one sentence about these windows, which hold probes; an empty list if there are none.

    If `now`, the time of the response, is given, the sentence includes the remaining time.
    """
    if not windows:
        return []
    last = max(windows, key=lambda window: str(window["until"]))
    named = [_hold(window) for window in windows[:MAX_HOLDS]]
    more = len(windows) - len(named)
    others = f"; and {more} more" if more else ""
    return [f"No probe runs until {_end(last['until'])}{_remaining_time(last, now)}: held {'; '.join(named)}{others}."]


def _release(window: Document) -> str:
    gpu, address = window["gpu"], window["pci_bus_id"]
    subject = "Every GPU" if address is None else f"GPU {address if gpu is None else gpu}"
    until, remaining = window["until"][11:19], _full_minutes(window["remaining_seconds"])
    return f"{subject} is released until {until} UTC, for {remaining} more, by {window['by']}."


def _hold(window: Document) -> str:
    owner = f" for {window['owner']}" if window["owner"] else ""
    reason = f" ({window['reason']})" if window["reason"] else ""
    return f"by {window['by']}{owner}{reason}"


def _end(until: str) -> str:
    return f"{until[:10]} {until[11:19]} UTC"


def _remaining_time(window: Document, now: str | None) -> str:
    if now is None:
        return ""
    passed, left = seconds_between(window["since"], now), seconds_between(now, window["until"])
    if passed is None or left is None or min(passed, left) < -CLOCK_TOLERANCE_SECONDS:
        return " (the wall clock contradicts this and is not trusted yet after the boot)"
    return f", for {_full_minutes(left)} more"


def _full_minutes(seconds: float) -> str:
    """Format a remaining time; from a minute on, rounded to full minutes: 4 min 59 s are 5 min."""
    return duration(seconds if seconds < MINUTE else MINUTE * round(seconds / MINUTE))
