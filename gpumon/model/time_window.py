"""A time window (release, hold or maintenance) as a frozen value, and pure functions that start and end windows."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpumon.model.durations import utc
from gpumon.model.instant import Instant, Now
from gpumon.model.str_enum import StrEnum

NODE = ""
"""Value of `TimeWindow.bus_id` for a window that applies to the whole node."""
API, COMMAND, MARKER = "api", "command", "marker"
REQUESTERS = (API, COMMAND, MARKER)
DEADLINE, REPLACED, REBOOT = "deadline", "replaced", "reboot"
"""Values of `ended_by`: the deadline passed, a newer window with the same slot replaced it, or the host rebooted."""
MAX_REASON_LENGTH = 200
MAX_OWNER_LENGTH = 100
MAX_IN_FORCE = 256
"""Maximum number of windows of one kind in force. When it is reached, a new window must replace another."""
MAX_ENDED = 20
"""Number of ended windows of a kind that are kept when a window of that kind starts. Older ones are dropped."""
STEP_SECONDS = 1.0
"""Seconds by which the wall clock must deviate from the boot clock to count as stepped."""
SETTLED_SECONDS = 600.0
"""Seconds after boot from which the wall clock is trusted, because NTP has set it by then."""
END_SOME = "End those that are no longer needed: `gpumon status` lists them."
LOWER_DURATION = "Ask for less, or raise the setting."


class WindowKind(StrEnum):
    """Kind of a time window. It determines from what the agent refrains during the window."""

    RELEASE = "release"
    """Prevents access to the driver: no process of the agent has the GPU open."""
    HOLD = "hold"
    """Prevents probes."""
    MAINTENANCE = "maintenance"
    """Prevents paging: alerts of paging severities do not fire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """A period in which the agent refrains from access, probes or paging (`kind`). In force until `ended` is set."""

    id: str
    kind: WindowKind
    bus_id: str = NODE
    """Scope: bus id of a GPU, or NODE. Only a release can have the scope of one GPU."""
    owner: str = ""
    """Owner that the client named, for example a job id; empty without one."""
    reason: str = ""
    by: str
    """Origin of the request, one of REQUESTERS."""
    started: Instant
    deadline: Instant
    """The boot clock ends the window, so that steps of the wall clock do not matter. The wall time is adjusted to the
    current setting of that clock. It is for display and for a reboot. Both instants are in the same boot.
    """
    ended: float | None = None
    """Wall time at which the window ended, in seconds since the epoch; None while it is in force."""
    ended_by: str = ""
    """What ended the window: DEADLINE, REPLACED, REBOOT, or one of REQUESTERS; empty while it is in force."""

    @property
    def slot(self) -> tuple[str, ...]:
        """Return the kind, the scope and the owner of the window, and MARKER if a marker file started it, else "".

        A new window replaces the window in force that has the same slot. A window of a marker file therefore never
        replaces one that a client requested.
        """
        return (self.kind, self.bus_id, self.owner, MARKER if self.by == MARKER else "")

    @property
    def seconds(self) -> float:
        """Return the seconds from the start of the window to its deadline, also if it was ended earlier."""
        return self.deadline.at - self.started.at

    @property
    def end(self) -> Instant:
        """Return when the window ended; its deadline while it is in force."""
        return self.deadline if self.ended is None else self.deadline._replace(wall=self.ended)


Windows = tuple[TimeWindow, ...]
"""All windows in force, and the windows that ended last, ordered by their start; the newest is last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRequest:
    """Request from a client or a marker file to start a window that lasts `seconds`."""

    kind: WindowKind
    seconds: float
    by: str
    bus_id: str = NODE
    owner: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSelection:
    """Request from `by` to end windows: those that equal the selection in every other attribute that is not None.

    A window that the marker file started never matches.
    """

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
    """Message: the windows with these ids were ended before their deadline."""

    ids: frozenset[str]
    by: str
    time: Instant


def new_window(request: WindowRequest, now: Instant) -> TimeWindow:
    """Return a new window that starts now."""
    return TimeWindow(
        id=secrets.token_hex(6),
        kind=request.kind,
        bus_id=request.bus_id,
        owner=request.owner,
        reason=request.reason,
        by=request.by,
        started=now,
        deadline=Instant(now.boot_id, now.at + request.seconds, now.wall + request.seconds),
    )


# Windows in force


def of_kind(windows: Iterable[TimeWindow], kind: WindowKind) -> Windows:
    return tuple(window for window in windows if window.kind is kind)


def in_force(windows: Iterable[TimeWindow], kind: WindowKind | None = None) -> Windows:
    """Return the windows of this kind that are in force; windows of all kinds if `kind` is None."""
    return tuple(window for window in windows if window.ended is None and kind in (None, window.kind))


def last_to_end(windows: Iterable[TimeWindow], kind: WindowKind) -> TimeWindow | None:
    """Return the window of this kind in force that has the latest deadline; None if none is in force."""
    return max(in_force(windows, kind), key=lambda window: window.deadline.at, default=None)


def released_scopes(windows: Iterable[TimeWindow]) -> frozenset[str]:
    """Return the scopes of the releases in force: bus ids, and NODE if the whole node is released."""
    return frozenset(window.bus_id for window in in_force(windows, WindowKind.RELEASE))


# Changes


def start(windows: Windows, window: TimeWindow) -> Windows:
    """Return the windows with `window`, which replaces the one in its slot, and with at most MAX_ENDED ended ones."""
    replaced = tuple(_end(old, REPLACED, window.started) if old.slot == window.slot else old for old in windows)
    ended = [old for old in replaced if old.kind is window.kind and old.ended is not None]
    dropped = {old.id for old in ended[:-MAX_ENDED]}
    return (*(old for old in replaced if old.id not in dropped), window)


def end(windows: Windows, message: WindowsEnded) -> Windows:
    return tuple(_end(window, message.by, message.time) if window.id in message.ids else window for window in windows)


def advance(windows: Windows, now: Now, boot_id: str) -> Windows:
    """Return the windows after ending those past their deadline, and releases from an earlier boot.

    The other windows in force are adjusted to a reboot or a step of the wall clock. `boot_id`: the current boot.
    """
    after = tuple(_advance(window, now, boot_id) for window in windows)
    return windows if all(new is old for new, old in zip(after, windows, strict=True)) else after


def _end(window: TimeWindow, by: str, time: Instant) -> TimeWindow:
    if window.ended is not None:
        return window
    deadline = window.deadline._replace(at=min(time.at, window.deadline.at))
    return replace(window, ended=min(time.wall, deadline.wall), deadline=deadline, ended_by=by)


def _advance(window: TimeWindow, now: Now, boot_id: str) -> TimeWindow:
    if window.ended is not None:
        return window
    if window.kind is WindowKind.RELEASE and window.deadline.boot_id != boot_id:
        return replace(window, ended=min(now.wall, window.deadline.wall), ended_by=REBOOT)
    if _is_undated(window, now, boot_id):
        return window
    window = _on_this_boot(window, now, boot_id)
    deadline = window.deadline
    if now.at >= deadline.at:
        return replace(window, ended=deadline.wall, ended_by=DEADLINE)
    wall = now.wall + deadline.at - now.at
    stepped = abs(wall - deadline.wall) > STEP_SECONDS
    return replace(window, deadline=deadline._replace(wall=wall)) if stepped else window


def _is_undated(window: TimeWindow, now: Now, boot_id: str) -> bool:
    """Return True if it is unknown when a window from an earlier boot ends, because the wall clock may not be set yet.

    A wall clock before the start of the window is wrong: the end is unknown until the boot has lasted as long as the
    window. A wall clock past the end may be wrong until SETTLED_SECONDS after boot.
    """
    if window.deadline.boot_id == boot_id:
        return False
    left = window.deadline.wall - now.wall
    if left > window.seconds + STEP_SECONDS:
        return now.at < window.seconds
    return left <= 0 and now.at < SETTLED_SECONDS


def _on_this_boot(window: TimeWindow, now: Now, boot_id: str) -> TimeWindow:
    """Return the window on this boot's clock. A wall clock before its start was never set: it counts from the boot."""
    if window.deadline.boot_id == boot_id:
        return window
    seconds, left = window.seconds, window.deadline.wall - now.wall
    at = now.at + left if left <= seconds + STEP_SECONDS else seconds
    return replace(
        window,
        started=Instant(boot_id, at - seconds, window.started.wall),
        deadline=Instant(boot_id, at, window.deadline.wall),
    )


# Each of these returns the problem of a request as a sentence, or "" if there is none.


def duration_problem(seconds: float, max_seconds: float, setting: str) -> str:
    """Return a sentence on why a window must not last `seconds`; "" if it may. `setting`: key of the maximum."""
    if 0 < seconds <= max_seconds:
        return ""
    return f"{seconds:.10g} s is not between 0 and {setting}, which is {max_seconds:.10g}."


def number_problem(windows: Iterable[TimeWindow], window: TimeWindow) -> str:
    """Return a sentence if `window` cannot start because too many windows of its kind are in force; "" if it can.

    A window that replaces another can always start.
    """
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
    """Return a text that names the hold that ends last and the command that ends it; "" without a hold."""
    if not holds:
        return ""
    last = max(holds, key=lambda window: window.deadline.wall)
    others = f", and {len(holds) - 1} more" if len(holds) > 1 else ""
    owner = f"{last.owner} (by {last.by})" if last.owner else last.by
    reason = f": {last.reason.rstrip('.')}" if last.reason else ""
    until = utc(last.deadline.wall).strftime("%Y-%m-%d %H:%M:%S UTC")
    command = f"gpumon probe unhold --owner {last.owner}" if last.owner else "gpumon probe unhold"
    return f"Held until {until} by {owner}{others}{reason}. Run again then, or end it with `{command}`."
