"""Check, the row type of the table of health checks, with the functions that are used in rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from gpumon.health.facts import Facts, GpuCase, JobCase, PortCase
from gpumon.health.policy import Limit
from gpumon.health.sample_windows import SampleWindow
from gpumon.health.verdict import (
    ACTIONS,
    FAIL,
    NODE,
    PASSED,
    WARN,
    Action,
    Clearance,
    Evidence,
    Finding,
    Level,
    Verdict,
    clear,
)
from gpumon.model.gpu import Gpu
from gpumon.model.infiniband import FABRIC
from gpumon.model.str_enum import StrEnum

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


class Paging(StrEnum):
    """When an alert pages: value of the label `page` of alerts."""

    NIGHT = "night"
    """At any hour: several GPUs, the data of a job or the building are at risk until an operator acts."""
    DAY = "day"
    """As a ticket, sent at once: until an operator reads it, it suffices that the scheduler drains the node."""
    NEVER = "never"
    """Never: only dashboards and the API show the alert."""


Where = Literal["same", "node", "peer", "any", "held", "holder"]
"""Device whose verdict inhibits. peer: a GPU at the other end of an NVLink of the inhibited GPU. held: a GPU that the
inhibited job holds. holder: the job that holds the inhibited GPU.
"""


@dataclass(frozen=True, slots=True)
class XidCause:
    """Value of `Check.inhibited_by`: the cause inhibits only if `xid` in its verdict's evidence is one of these."""

    where: Where
    codes: frozenset[int]


@dataclass(frozen=True, slots=True)
class Latch:
    """Rule of a latched check: its verdict stays until a condition below, or an operator, clears it."""

    quiet: float | None = None
    """Observed seconds without the fault after which the verdict is cleared. None: quiet time does not clear it."""
    repair: bool = True
    """Whether a reset or reboot, followed by a healthy period, clears the verdict. False if no device is at fault."""


def same(*checks: str) -> dict[str, Where]:
    """Return a value for `Check.inhibited_by`: verdicts of these checks inhibit a verdict on the same device."""
    return dict.fromkeys(checks, "same")


def any_device(*checks: str) -> dict[str, Where]:
    """Return a value for `Check.inhibited_by`: verdicts of these checks inhibit a verdict on any device."""
    return dict.fromkeys(checks, "any")


def held(*checks: str) -> dict[str, Where]:
    """Return a value for `Check.inhibited_by`: verdicts of these checks on its GPUs inhibit one on a job."""
    return dict.fromkeys(checks, "held")


def covers(verdict: Verdict, cause: Verdict) -> bool:
    """Return whether the cause's action includes the verdict's: it is the same action, or a later one in ACTIONS."""
    order = list(ACTIONS)
    return order.index(cause.action) >= order.index(verdict.action)


def asks_for_no_less(verdict: Verdict, cause: Verdict) -> bool:
    """Return whether to perform the cause's action first, because it may end the verdict's fault too."""
    first = cause.action in {Action.REBOOT, Action.FIX}
    return covers(verdict, cause) or (verdict.action is Action.INSPECT and first)


def covers_same_time(verdict: Verdict, cause: Verdict, together: bool) -> bool:  # noqa: FBT001 - see Check.inhibited_if
    """Return whether cause and verdict overlap in time (`together`) and `covers` is true. For `Check.inhibited_if`."""
    return together and covers(verdict, cause)


def began_together(verdict: Verdict, cause: Verdict, together: bool) -> bool:  # noqa: FBT001 - see Check.inhibited_if
    """Return whether the verdict began at most 10 minutes after its cause. An old one explains no new fault."""
    return together and verdict.raised.wall <= cause.raised.wall + 10 * MINUTE


def flag_check(flag: Callable[[Gpu], float | None], finding: Finding) -> Callable[[GpuCase], Finding | None]:
    """Return a check function that returns `finding` while the GPU's flag is set, and None if it cannot be read."""

    def evaluate(gpu: GpuCase) -> Finding | None:
        value = flag(gpu.now)
        return None if value is None else finding if value else PASSED

    return evaluate


def by_role(check: Callable[[PortCase], Finding | None], port: PortCase) -> Finding | None:
    """Return the finding of a check on a port. A failure becomes a warning unless the port has the role `fabric`.

    The GPUs on the port's PCIe switch, or why it has another role, are added. A port that must not be read passes.
    """
    if port.port.restricted:
        return clear(Clearance.GONE)
    finding = check(port)
    if finding is None or finding.level not in {WARN, FAIL}:
        return finding
    if port.port.role == FABRIC:
        return finding._replace(reason=f"{finding.reason}{port.neighbours}")
    why = f" ({port.port.role_reason})" if port.port.role_reason else ""
    action = Action.INSPECT if finding.action is Action.REBOOT else finding.action
    return finding._replace(level=WARN, action=action, reason=f"{finding.reason} It is not a fabric port{why}.")


_CAMEL_CASE = {each.lower(): each for each in ("AllReduce", "AllGather", "ReduceScatter", "AllToAll", "SendRecv")}


def alert_name(check: str) -> str:
    """Return the name of a check's alert: the check's name in CamelCase."""
    return "".join(_CAMEL_CASE.get(word, word.capitalize()) for word in check.split("_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One health check: a row of the table. Exactly one of `gpu`, `port`, `job` and `node` is given."""

    name: str
    """Value of the label `check`."""
    levels: tuple[Level, ...] = (FAIL,)
    """Levels that the check can return in addition to OK and UNKNOWN."""
    help: str
    """One sentence: the fault that the check finds."""
    steps: str
    """Runbook: what an operator does, as a numbered list in Markdown."""
    gpu: Callable[[GpuCase], Finding | None] | None = None
    """Function that evaluates one GPU. It returns None if the check cannot be evaluated: then the verdict stays."""
    port: Callable[[PortCase], Finding | None] | None = None
    """Function that evaluates one InfiniBand or RoCE port and returns the same as `gpu`."""
    job: Callable[[JobCase], Finding | None] | None = None
    """Function that evaluates one job with GPUs of this node and returns the same as `gpu`."""
    node: Callable[[Facts], Finding | None] | None = None
    """Function that evaluates the node or the agent and returns the same as `gpu`."""
    after: float = 0.0
    """Seconds for which the finding must last before it becomes a verdict."""
    clear_after: float = MINUTE
    """Seconds for which the check must pass before the verdict is cleared, unless it is latched."""
    latch: Latch | None = None
    grace: bool = False
    """Whether the check is skipped for Policy.boot_grace after a boot, while links train and daemons start."""
    inhibited_by: Mapping[str, Where | XidCause] = field(default_factory=dict)
    """Checks, earlier in the table, whose verdicts inhibit this check's, each with the inhibiting device."""
    inhibited_if: Callable[[Verdict, Verdict, bool], bool] | None = None
    """Function that returns whether a cause inhibits. Arguments: this check's verdict, the verdict of the cause, and
    whether both overlap in time. None: a cause that overlaps in time inhibits; for a latched verdict
    `asks_for_no_less` must be true too.
    """
    windows: tuple[SampleWindow, ...] = ()
    """Sample windows that the check reads. Only metrics that are named here are recorded."""
    counts_causes: bool = False
    """Whether the check counts how often causes recur: clearing one does not restart it or clear an active verdict."""
    limits: tuple[Limit, ...] = ()
    """Thresholds that an operator can set."""
    probe: str = ""
    """Name of a probe: the check is evaluated only while that has a schedule."""
    notice: str = ""
    """Subject of the agent's notice (Facts.notices) that reports the same fault; empty if there is none."""
    acceptable: bool = False
    """Whether clearing the check by name accepts the measured value as the new baseline."""
    pages: Paging = Paging.DAY
    """When a failure pages. A warning is a ticket; with NEVER it is not, and has severity info."""

    @property
    def kind(self) -> str:
        """Return the kind of the devices that the check evaluates: gpu, port, job or node."""
        return next(kind for kind in ("gpu", "port", "job", "node") if getattr(self, kind) is not None)

    @property
    def alert(self) -> str:
        """Return the name of the check's first alert. A second alert has this name followed by `Warning`."""
        return alert_name(self.name)

    @property
    def ends_with_cause(self) -> bool:
        """Return whether clearing a cause also clears the verdict that it inhibits and restarts the check's windows."""
        return bool(self.windows) and self.latch is None and not self.counts_causes

    @property
    def ends_by_repair(self) -> bool:
        """Return whether a repair followed by a healthy period clears the check's verdicts."""
        return self.latch is not None and self.latch.repair

    def inhibited_where(self, cause: str, evidence: Evidence | None = None) -> Where | None:
        """Return where a verdict of the check `cause` inhibits; None if none does, or not one with this evidence."""
        rule = self.inhibited_by.get(cause)
        if not isinstance(rule, XidCause):
            return rule
        return rule.where if evidence is None or evidence.get("xid") in rule.codes else None

    @property
    def advice(self) -> str:
        """Return the first step without the action with which it begins. The verdict's own action may be stronger."""
        return split_action(first_step(self.steps))[1]

    @property
    def severities(self) -> tuple[tuple[Level, str], ...]:
        """Return (level, severity) of each of the check's alerts. The severity is critical, warning or info."""
        words = {FAIL: "critical", WARN: "info" if self.pages is Paging.NEVER else "warning"}
        return tuple((level, words[level]) for level in self.levels)

    def paging(self, level: Level) -> Paging:
        """Return whether the alert of this level pages at any hour, is a ticket, or is only shown."""
        if level is FAIL:
            return Paging.NIGHT if self.pages is Paging.NIGHT else Paging.DAY
        return Paging.NEVER if self.pages is Paging.NEVER else Paging.DAY

    def cases(self, facts: Facts) -> Iterator[tuple[str, Callable[[], Finding | None]]]:
        """Yield (device, function) for each device that the check evaluates. The function returns the finding."""
        if self.probe and self.probe not in facts.probe_intervals:
            return
        if self.gpu is not None:
            yield from ((case.device, partial(self.gpu, case)) for case in facts.gpu_cases)
        if self.port is not None:
            yield from ((case.device, partial(by_role, self.port, case)) for case in facts.port_cases)
        if self.job is not None:
            yield from ((case.device, partial(self.job, case)) for case in facts.job_cases)
        if self.node is not None:
            yield NODE, partial(self.node, facts)


def for_job(text: str, job: str) -> str:
    """Return a text in which the JOB of `gpumon explain JOB` is this one."""
    return text.replace("explain JOB", f"explain {job}")


def first_step(steps: str) -> str:
    """Return the first step of a numbered list in one line, without its number."""
    return " ".join(steps.partition("\n2. ")[0].removeprefix("1. ").split())


_ACTION = re.compile(rf"(?:{'|'.join(ACTIONS.values())})\. ?", re.IGNORECASE)


def split_action(step: str) -> tuple[str, str]:
    """Return the text of ACTIONS with which a step begins, including its full stop, or "", and the rest of the step."""
    match = _ACTION.match(step)
    return (match[0], step[match.end() :]) if match else ("", step)
