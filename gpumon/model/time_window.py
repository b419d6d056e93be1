"""Time windows: release, hold and maintenance as one frozen value, and the pure rules about windows."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gpumon.model.durations import utc
from gpumon.model.now import Now

NODE = ""
"""The scope of a window that applies to the whole node, in place of a bus id."""
API, COMMAND, MARKER = "api", "command", "marker"
REQUESTERS = (API, COMMAND, MARKER)
DEADLINE, REPLACED, REBOOT = "deadline", "replaced", "reboot"
"""What ends a window besides a requester."""
MAX_REASON_LENGTH = 200
MAX_OWNER_LENGTH = 100
MAX_IN_FORCE = 256
"""Windows of one kind in force at once; further requests are refused."""
MAX_ENDED = 20
"""Windows of one kind that are kept after they have ended."""
STEP_SECONDS = 1.0
"""Difference between both clocks from which the wall clock counts as stepped."""
SETTLED_SECONDS = 600.0
"""Uptime after which the wall clock is trusted if it is past the end of a window: by then NTP has set it."""
END_SOME = "End those that are no longer needed: `gpumon status` lists them."
LOWER_DURATION = "Ask for less, or raise the setting."


class WindowKind(StrEnum):
    """What a window inhibits."""

    RELEASE = "release"
    """The driver: no process of the agent has the GPU open."""
    HOLD = "hold"
    """Probes: none runs."""
    MAINTENANCE = "maintenance"
    """Pages: no alert fires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """A period in which the agent refrains from one thing, on request. In force until `ended` is set."""

    id: str
    kind: WindowKind
    bus_id: str = NODE
    """Scope: a GPU, or NODE. Only a release can have the scope of one GPU."""
    owner: str = ""
    """For example the id of a job. Empty: no owner."""
    reason: str = ""
    by: str
    """One of REQUESTERS."""
    start: float
    """Seconds since the epoch, as the wall clock was set at the start."""
    start_at: float
    """The same moment on CLOCK_BOOTTIME; negative if it was before the boot."""
    until: float
    """The deadline in seconds since the epoch, as the wall clock is set now. For display and across a reboot."""
    deadline: float
    """The deadline on CLOCK_BOOTTIME, which decides: a step of the wall clock does not move it."""
    boot_id: str
    """The boot to which `start_at` and `deadline` belong."""
    ended: float | None = None
    """Seconds since the epoch. None while the window is in force."""
    ended_by: str = ""
    """One of REQUESTERS, DEADLINE, REPLACED or REBOOT."""

    @property
    def slot(self) -> tuple[str, ...]:
        """Return the key of the window that a new one replaces. A marker file never replaces a request."""
        return (self.kind, self.bus_id, self.owner, MARKER if self.by == MARKER else "")

    @property
    def seconds(self) -> float:
        """Length from start to deadline."""
        return self.deadline - self.start_at


Windows = tuple[TimeWindow, ...]
"""In the order of their start, the newest last. The last MAX_ENDED of each kind that have ended are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRequest:
    """A request to start a window."""

    kind: WindowKind
    seconds: float
    by: str
    bus_id: str = NODE
    owner: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSelection:
    """A request to end the windows that match every attribute that is not None, except those of the marker file."""

    by: str
    kind: WindowKind | None = None
    id: str | None = None
    bus_id: str | None = None
    owner: str | None = None

    def matches(self, window: TimeWindow) -> bool:
        return (
            window.by != MARKER
            and self.kind in (None, window.kind)
            and self.id in (None, window.id)
            and self.bus_id in (None, window.bus_id)
            and self.owner in (None, window.owner)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsEnded:
    """The windows with these ids were ended before their deadline."""

    ids: frozenset[str]
    by: str
    wall: float
    at: float
    """The same moment on CLOCK_BOOTTIME."""


def new_window(request: WindowRequest, *, wall: float, at: float, boot_id: str) -> TimeWindow:
    """Return the window that starts now. `at` is now on CLOCK_BOOTTIME."""
    return TimeWindow(
        id=secrets.token_hex(6),
        kind=request.kind,
        bus_id=request.bus_id,
        owner=request.owner,
        reason=request.reason,
        by=request.by,
        start=wall,
        start_at=at,
        until=wall + request.seconds,
        deadline=at + request.seconds,
        boot_id=boot_id,
    )


# Windows in force


def of_kind(windows: Iterable[TimeWindow], kind: WindowKind) -> Windows:
    return tuple(window for window in windows if window.kind is kind)


def in_force(windows: Iterable[TimeWindow], kind: WindowKind | None = None) -> Windows:
    """Return the windows in force, of one kind or of all."""
    return tuple(window for window in windows if window.ended is None and kind in (None, window.kind))


def last_to_end(windows: Iterable[TimeWindow], kind: WindowKind) -> TimeWindow | None:
    """Return the window in force with the latest deadline."""
    return max(in_force(windows, kind), key=lambda window: window.deadline, default=None)


def released(windows: Iterable[TimeWindow]) -> frozenset[str]:
    """Return the scopes of the releases in force: bus ids, and NODE if the whole node is released."""
    return frozenset(window.bus_id for window in in_force(windows, WindowKind.RELEASE))


# Changes


def start(windows: Windows, window: TimeWindow) -> Windows:
    """Add a window. It replaces the one in force in the same slot."""
    replaced = tuple(
        _end(old, REPLACED, window.start, window.start_at) if old.slot == window.slot else old for old in windows
    )
    ended = [old for old in replaced if old.kind is window.kind and old.ended is not None]
    dropped = {old.id for old in ended[:-MAX_ENDED]}
    return (*(old for old in replaced if old.id not in dropped), window)


def end(windows: Windows, message: WindowsEnded) -> Windows:
    return tuple(
        _end(window, message.by, message.wall, message.at) if window.id in message.ids else window for window in windows
    )


def advance(windows: Windows, now: Now, boot_id: str) -> Windows:
    """End windows whose deadline has passed, and follow reboots and steps of the wall clock."""
    after = tuple(_advance(window, now, boot_id) for window in windows)
    return windows if all(new is old for new, old in zip(after, windows, strict=True)) else after


def _end(window: TimeWindow, by: str, wall: float, at: float) -> TimeWindow:
    if window.ended is not None:
        return window
    return replace(window, ended=min(wall, window.until), deadline=min(at, window.deadline), ended_by=by)


def _advance(window: TimeWindow, now: Now, boot_id: str) -> TimeWindow:
    if window.ended is not None:
        return window
    if window.kind is WindowKind.RELEASE and window.boot_id != boot_id:
        return replace(window, ended=min(now.wall, window.until), ended_by=REBOOT)
    if _is_undated(window, now, boot_id):
        return window
    window = _on_this_boot(window, now, boot_id)
    if now.at >= window.deadline:
        return replace(window, ended=window.until, ended_by=DEADLINE)
    until = now.wall + window.deadline - now.at
    return replace(window, until=until) if abs(until - window.until) > STEP_SECONDS else window


def _is_undated(window: TimeWindow, now: Now, boot_id: str) -> bool:
    """Return whether the wall clock of a new boot may not have been set yet, so that the end is unknown.

    A clock before the start is wrong. A clock past the end may be wrong until SETTLED_SECONDS after the boot.
    """
    if window.boot_id == boot_id:
        return False
    left = window.until - now.wall
    if left > window.seconds + STEP_SECONDS:
        return now.at < window.seconds
    return left <= 0 and now.at < SETTLED_SECONDS


def _on_this_boot(window: TimeWindow, now: Now, boot_id: str) -> TimeWindow:
    """Move the deadline to the clock of this boot. If the wall clock was never set, count the length from the boot."""
    if window.boot_id == boot_id:
        return window
    left = window.until - now.wall
    deadline = now.at + left if left <= window.seconds + STEP_SECONDS else window.seconds
    return replace(window, boot_id=boot_id, start_at=deadline - window.seconds, deadline=deadline)


# Problems of a request, in words; empty if there is none


def duration_problem(seconds: float, max_seconds: float, setting: str) -> str:
    """Check the length; `setting` is the configuration key of `max_seconds`."""
    if 0 < seconds <= max_seconds:
        return ""
    return f"{seconds:.10g} s is not between 0 and {setting}, which is {max_seconds:.10g}."


def number_problem(windows: Iterable[TimeWindow], window: TimeWindow) -> str:
    """Return why one more window cannot start. One that replaces another always can."""
    slots = {other.slot for other in in_force(windows, window.kind)}
    if len(slots) < MAX_IN_FORCE or window.slot in slots:
        return ""
    return f"{len(slots)} windows of kind {window.kind} are in force, and {MAX_IN_FORCE} is the maximum."


def reason_problem(reason: str, *, required: bool = False) -> str:
    if required and not reason.strip():
        return "A maintenance needs a reason."
    return _text_problem("reason", reason, MAX_REASON_LENGTH)


def owner_problem(owner: str) -> str:
    return _text_problem("owner", owner, MAX_OWNER_LENGTH)


def _text_problem(name: str, text: str, max_length: int) -> str:
    if len(text) > max_length:
        return f"The {name} has {len(text)} characters; the maximum is {max_length}."
    return "" if text.isprintable() else f"The {name} has characters that cannot be printed."


# Holds


def hold_hint(holds: Sequence[TimeWindow]) -> str:
    """Return which hold keeps probes from running, until when and why, and what to do. Empty without a hold."""
    if not holds:
        return ""
    last = max(holds, key=lambda window: window.until)
    others = f", and {len(holds) - 1} more" if len(holds) > 1 else ""
    owner = f"{last.owner} (by {last.by})" if last.owner else last.by
    reason = f": {last.reason.rstrip('.')}" if last.reason else ""
    until = utc(last.until).strftime("%Y-%m-%d %H:%M:%S UTC")
    command = f"gpumon probe unhold --owner {last.owner}" if last.owner else "gpumon probe unhold"
    return f"Held until {until} by {owner}{others}{reason}. Run again then, or end it with `{command}`."
