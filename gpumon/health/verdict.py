"""Findings of checks, the verdicts that they become, and the transitions of verdicts. Frozen values."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from gpumon.model.instant import Instant
from gpumon.model.reading import Labels
from gpumon.model.str_enum import StrEnum


class Level(enum.IntEnum):
    """Severity of a verdict. A higher number is worse, so that `max()` in PromQL returns the worst level."""

    OK = 0
    UNKNOWN = 1
    WARN = 2
    FAIL = 3

    @property
    def word(self) -> str:
        return self.name.lower()


OK, UNKNOWN, WARN, FAIL = Level


HISTORY_UNREAD = "gpumon_history_unread"
"""Name of the check for stored health state that is unread or lost. `gpumon check` ranks its verdict above warnings."""
OWN_ACTION = "own_action"
"""Key in the evidence of an Xid's verdict: the action's text in the operator's xids.file, if the Xid table lacks it."""
HELD_BY = "held_by"
"""Key in the evidence of a verdict on a GPU: the owners of the GPU when it was raised, separated by commas."""
LOST_TO = "damaged_store"
"""Key in the evidence of a HISTORY_UNREAD verdict: new path of the damaged store, whose verdicts are lost."""


class Action(StrEnum):
    """What an operator does about a verdict, in ascending order of effort."""

    NONE = "none"
    RESTART = "restart"
    RESET = "reset"
    REBOOT = "reboot"
    FIX = "fix"
    INSPECT = "inspect"
    REPLACE = "replace"


ACTIONS: Mapping[Action, str] = {
    Action.NONE: "no action",
    Action.RESTART: "restart the application or service",
    Action.RESET: "drain the node and reset the GPU",
    Action.REBOOT: "drain the node and reboot it",
    Action.FIX: "fix the software or its configuration",
    Action.INSPECT: "inspect the hardware and its logs",
    Action.REPLACE: "replace the part",
}
"""Text of each action."""


class Clearance(StrEnum):
    """What cleared a verdict."""

    RECOVERED = "recovered"
    RESET = "reset"
    REBOOT = "reboot"
    QUIET = "quiet"
    OPERATOR = "operator"
    GONE = "gone"
    NAMED = "named"
    OFF = "off"


CLEARANCE_TEXTS: Mapping[Clearance, str] = {
    Clearance.RECOVERED: "the check passes again",
    Clearance.RESET: "the GPU was reset, and the check has passed since",
    Clearance.REBOOT: "the node was rebooted, and the check has passed since",
    Clearance.QUIET: "the fault has not recurred for long enough",
    Clearance.OPERATOR: "an operator cleared it",
    Clearance.GONE: "the device is no longer expected",
    Clearance.NAMED: "the GPU reported its uuid, and the verdict continues under it",
    Clearance.OFF: "the check, or its threshold, is switched off",
}
"""Text of each clearance."""
REPAIRS = frozenset({Clearance.RESET, Clearance.REBOOT, Clearance.OPERATOR})
"""Clearances that result from the work of an operator."""

NODE = ""
"""Value of `Verdict.device` for a verdict on the node or the agent."""
JOB = "job/"
"""Prefix of `Verdict.device` for a verdict on a job; the id of the job follows."""

Key = tuple[str, str]
"""Name of the check, and `Verdict.device`. There is at most one open verdict for each key."""
Evidence = Mapping[str, float | str]
"""Values that support a finding, by name. A name ends in the unit, as metric names do: `power_watts`."""
NO_EVIDENCE: Evidence = {}


def labels_of_device(device: str, indexes: Mapping[str, int]) -> Labels:
    """Return the labels of a device: gpu and uuid; device and port; job_id; or none for the node.

    `indexes`: index of each GPU, by its uuid and by the substitute for the uuid.
    """
    if device.startswith(JOB):
        return (("job_id", device.removeprefix(JOB)),)
    name, _, port = device.partition("/")
    if port:
        return ("device", name), ("port", port)
    index = (("gpu", str(indexes[device])),) if device in indexes else ()
    return (*index, ("uuid", device)) if device else ()


def device_of(labels: Mapping[str, str]) -> str:
    """Return the device with these labels, among others: the inverse of `labels_of_device`."""
    if "job_id" in labels:
        return JOB + labels["job_id"]
    return labels.get("uuid") or "/".join(labels[name] for name in ("device", "port") if labels.get(name))


class Finding(NamedTuple):
    """The result of a check for one device."""

    level: Level
    reason: str = ""
    """One sentence with the relevant numbers. Contains no process and no user name."""
    action: Action = Action.NONE
    evidence: Evidence = NO_EVIDENCE
    at: float | None = None
    """Time of the event that was found, in seconds since the epoch; None for a condition that is active now."""
    ended: Clearance | None = None
    """For level OK: what ended the fault; then a latched verdict is cleared too. None: a latched verdict stays open."""


PASSED = Finding(level=OK)


def clear(cleared_by: Clearance = Clearance.RECOVERED) -> Finding:
    """Return a finding of level OK that also clears a latched verdict. `cleared_by`: what ended the fault."""
    return Finding(level=OK, ended=cleared_by)


OFF = clear(Clearance.OFF)
"""Finding of a check while its threshold is null. It clears the verdict of the check."""


def warn(reason: str, action: Action = Action.NONE, *, at: float | None = None, **evidence: float | str) -> Finding:
    """Return a finding of level WARN, which is a ticket. `at`: see Finding."""
    return Finding(level=WARN, reason=reason, action=action, evidence=evidence, at=at)


def fail(reason: str, action: Action, *, at: float | None = None, **evidence: float | str) -> Finding:
    """Return a finding of level FAIL: the device or the node is unfit for work. `at`: see Finding."""
    return Finding(level=FAIL, reason=reason, action=action, evidence=evidence, at=at)


def unknown(reason: str, action: Action = Action.NONE, **evidence: float | str) -> Finding:
    """Return a finding of level UNKNOWN: the check cannot be evaluated, and an operator should find out why."""
    return Finding(level=UNKNOWN, reason=reason, action=action, evidence=evidence)


class Verdict(NamedTuple):
    """A finding that has lasted as long as its check requires (Check.after). It stays open until it is cleared."""

    check: str
    device: str
    """uuid of a GPU, `device/port` of a port, JOB and the id of a job, or NODE."""
    level: Level
    reason: str
    action: Action
    """The action of the finding, or a stronger one if earlier repairs of the device did not help."""
    raised: Instant
    last_active: Instant
    """Time at which the fault was last active."""
    evidence: Evidence = NO_EVIDENCE
    ok_seconds: float = 0.0
    """Observed seconds since the fault was last active or, if a repair clears the verdict, since a later repair.

    Time in which the agent was stopped or the device was not read does not count.
    """
    reset_at: float | None = None
    """Boot clock time of the last GPU reset in this boot, detected by restarted counters; None if there is none."""
    active: bool = True
    """Whether the fault is active now: not ended, no event (Finding.at), and the check can be evaluated. Not stored."""
    inhibited_by: Key | None = None
    """Key of the verdict that explains this one; None for a primary verdict."""

    @property
    def key(self) -> Key:
        return self.check, self.device

    @property
    def action_text(self) -> str:
        """Return the text of the action. The operator's own text replaces that of INSPECT (see OWN_ACTION)."""
        text = self.evidence.get(OWN_ACTION) if self.action is Action.INSPECT else None
        return ACTIONS[self.action] if text is None else str(text)

    @property
    def code(self) -> str:
        """Return the code in the evidence, "SXid 12020" or "Xid 79: The GPU has fallen off the bus", or ""."""
        name = f": {self.evidence['name']}" if "name" in self.evidence else ""
        codes = ((word, self.evidence.get(key)) for word, key in (("Xid", "xid"), ("SXid", "sxid")))
        return next((f"{word} {code:.0f}{name}" for word, code in codes if isinstance(code, float | int)), "")

    def with_holders(self, reason: str) -> str:
        """Return a reason, and a sentence with those owners of the GPU that it does not name."""
        words, owners = f" {reason} ".replace(",", " "), str(self.evidence.get(HELD_BY, "")).split(", ")
        others = ", ".join(each for each in owners if each and f" {each} " not in words)
        return f"{reason} The GPU was held by {others}." if others else reason

    @property
    def episode(self) -> tuple[Key, float]:
        """Return key and time, which identify this verdict from the time it is raised until it is cleared."""
        return self.key, self.raised.wall


class VerdictChange(StrEnum):
    """The kind of a VerdictTransition."""

    RAISED = "raised"
    CHANGED = "changed"
    """The level or the action has changed."""
    CLEARED = "cleared"


class VerdictTransition(NamedTuple):
    """One change of one verdict, as it is stored."""

    verdict: Verdict
    """The verdict after the change; for CLEARED, the verdict as it was before."""
    change: VerdictChange
    time: Instant
    cleared_by: Clearance | None = None
    """What cleared the verdict; None for other changes."""
    note: str = ""
    """Note of the operator who cleared the verdict."""
    muted: bool = False
    """Whether the node was in maintenance at the change."""

    @property
    def is_repair(self) -> bool:
        """Return whether the work of an operator cleared the verdict: a reset, a reboot, or a request to clear it."""
        return self.cleared_by in REPAIRS
