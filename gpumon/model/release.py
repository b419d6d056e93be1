"""A release: what the agent was asked to keep off, for how long and by whom, and who still holds it. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from gpumon.model import durations

NODE = ""
"""In place of a bus id: every GPU, and the driver itself."""
ASKERS = ("api", "command", "marker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A while for which the agent keeps off one GPU or the whole node."""

    bus_id: str = NODE
    by: str
    """One of ASKERS."""
    since: float
    until: float
    """Seconds since the epoch, for display, as `since`."""
    deadline: float
    """The same end on CLOCK_BOOTTIME, which counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process of ours that has, or may have, a released GPU open."""

    pid: int
    words: str
    """For people: what it is, and which call on which GPU it is in."""
    stuck: bool = False
    """SIGKILL did not end it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """All windows in force, and who still holds what they cover."""

    windows: tuple[Window, ...] = ()
    holders: tuple[Holder, ...] = ()

    @property
    def bus_ids(self) -> frozenset[str]:
        """NODE among them when the whole node is released."""
        return frozenset(window.bus_id for window in self.windows)

    @property
    def end(self) -> float | None:
        """When the last window ends, in seconds since the epoch."""
        return max((window.until for window in self.windows), default=None)

    def covers(self, bus_id: str) -> bool:
        return bool(self.bus_ids & {NODE, bus_id})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a request to release or to end a release."""

    refused: str = ""
    """Why nothing was changed, in words."""
    remedy: str = ""
    holders: tuple[Holder, ...] = ()
    """Who still holds what was to be released, when the asker can wait no longer."""
    unseen: str = ""
    """Why nobody can tell, when the asker can wait no longer, whether something is left; in words."""
    stored: bool = True
    """False: it is so, and the next agent would not know it; the store is told when it can be written again."""


class MarkerError(ValueError):
    """A marker file that cannot be understood; the message says what is wrong and what to write."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a marker file asks for."""

    gpu: str | None = None
    """uuid, index or PCI address; None: the whole node."""
    seconds: float | None = None
    """None: as long as is allowed."""


def parse(text: str) -> Asked:
    """Words such as `for=5m gpu=3`; an empty file asks for the whole node. Raises MarkerError."""
    found: dict[str, str] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if name not in {"for", "gpu"} or not equals or not value or name in found:
            raise MarkerError(f"{word[:40]!r} is not understood: write nothing, or for=DURATION, gpu=GPU, or both")
        found[name] = value
    wanted = found.get("for")
    seconds = None if wanted is None else durations.seconds(wanted)
    if wanted is not None and not seconds:
        raise MarkerError(f"for={wanted[:40]!r} is no duration: write it as 90s, 5m or 1h")
    return Asked(gpu=found.get("gpu"), seconds=seconds)
