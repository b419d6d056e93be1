"""The words of verdicts: how bad, what to do, why one is over. Imports next to nothing, for `gpumon check`."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class Level(enum.IntEnum):
    """How bad; the highest is the worst, as `max()` in a query has it."""

    OK = 0
    UNKNOWN = 1
    WARN = 2
    FAIL = 3

    @property
    def word(self) -> str:
        return self.name.lower()


OK, UNKNOWN, WARN, FAIL = Level


HISTORY_UNREAD = "gpumon_history_unread"
"""The check that says that what was wrong before is not known: `gpumon check` lets no warning hide it."""


class Action(enum.StrEnum):
    """The one thing to do, the mildest first."""

    NONE = "none"
    RESTART = "restart"
    RESET = "reset"
    REBOOT = "reboot"
    INSPECT = "inspect"
    REPLACE = "replace"


ACTIONS: Mapping[Action, str] = {
    Action.NONE: "nothing to do",
    Action.RESTART: "restart the application or service",
    Action.RESET: "reset the GPU",
    Action.REBOOT: "reboot the node",
    Action.INSPECT: "have a person look into it",
    Action.REPLACE: "replace the part",
}
"""In words for people."""


class Way(enum.StrEnum):
    """Why a verdict was cleared."""

    WELL = "well"
    RESET = "reset"
    REBOOT = "reboot"
    QUIET = "quiet"
    ACKNOWLEDGED = "acknowledged"
    GONE = "gone"
    NAMED = "named"
    OFF = "off"


WAYS: Mapping[Way, str] = {
    Way.WELL: "it is well again",
    Way.RESET: "the GPU was reset, and is well since",
    Way.REBOOT: "the node was rebooted, and is well since",
    Way.QUIET: "it has not come again for long enough",
    Way.ACKNOWLEDGED: "somebody acknowledged it",
    Way.GONE: "its device is expected no more",
    Way.NAMED: "the GPU has told its name, under which it goes on",
    Way.OFF: "it, or its threshold, is switched off",
}
"""In words for people."""
