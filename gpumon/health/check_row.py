"""The row of a health check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from gpumon.health.device_case import DeviceCases, GpuCase, PortCase
from gpumon.health.facts import Facts
from gpumon.health.policy import Limit
from gpumon.health.sample_windows import SampleWindow
from gpumon.health.verdict import ACTIONS, FAIL, NODE, PASSED, WARN, Action, Finding, Level, Verdict
from gpumon.model.gpu import Gpu

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0

Where = Literal["same", "node", "peer", "any"]
"""Device of a cause: that of its consequence, the node, a GPU at the other end of an NVLink, or any device."""


@dataclass(frozen=True, slots=True)
class XidCause:
    """A cause that is a verdict on one of these Xids."""

    where: Where
    codes: frozenset[int]


@dataclass(frozen=True, slots=True)
class Latch:
    """A verdict that stays after its fault is no longer active, until a repair, an operator or quiet time clears it."""

    quiet: float | None = None
    """Observed seconds without the fault after which the verdict is cleared; None: never."""
    repair: bool = True
    """Whether a reset, or a reboot followed by a healthy period, clears it. False if no device is at fault."""


def same(*checks: str) -> dict[str, Where]:
    """Return a value of `inhibited_by`: these checks of the same device."""
    return dict.fromkeys(checks, "same")


def covers(verdict: Verdict, cause: Verdict) -> bool:
    """Return whether the action of the cause includes that of the verdict."""
    order = list(ACTIONS)
    return order.index(cause.action) >= order.index(verdict.action)


def asks_for_no_less(verdict: Verdict, cause: Verdict) -> bool:
    """Return whether the action of the cause comes first: it includes that of the verdict, or it is a reboot."""
    return covers(verdict, cause) or (verdict.action is Action.INSPECT and cause.action is Action.REBOOT)


def covers_same_time(verdict: Verdict, cause: Verdict, together: bool) -> bool:  # noqa: FBT001 - see Check.inhibited_if
    """Return whether the cause occurred at the same time and its action covers the verdict's: for `inhibited_if`."""
    return together and covers(verdict, cause)


def while_set(flag: Callable[[Gpu], float | None], finding: Finding) -> Callable[[GpuCase], Finding | None]:
    """Return a check function that returns the finding while a flag of the GPU is set."""

    def evaluate(gpu: GpuCase) -> Finding | None:
        value = flag(gpu.now)
        return None if value is None else finding if value else PASSED

    return evaluate


_CAMEL_CASE = {"allreduce": "AllReduce"}


def alert_name(check: str) -> str:
    """Return the name of a check's alert: the check's name in CamelCase."""
    return "".join(_CAMEL_CASE.get(word, word.capitalize()) for word in check.split("_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One health check. Exactly one of `gpu`, `port` and `node` is given."""

    name: str
    """Value of the label `check`."""
    levels: tuple[Level, ...] = (FAIL,)
    """Levels that the check can return in addition to OK and UNKNOWN."""
    help: str
    """One sentence: the fault that the check finds."""
    steps: str
    """Runbook: what an operator does, as a numbered list in Markdown."""
    gpu: Callable[[GpuCase], Finding | None] | None = None
    """Evaluates one GPU. Returns PASSED, a finding, or None if it cannot be evaluated: then the verdict stays."""
    port: Callable[[PortCase], Finding | None] | None = None
    """Evaluates one InfiniBand or RoCE port."""
    node: Callable[[Facts], Finding | None] | None = None
    """Evaluates the node or the agent."""
    after: float = 0.0
    """Seconds for which the finding must last before it becomes a verdict."""
    clear_after: float = MINUTE
    """Seconds for which the check must pass before the verdict is cleared, unless it is latched."""
    latch: Latch | None = None
    grace: bool = False
    """Whether the check is not evaluated for some minutes after a boot, while links train and daemons start."""
    inhibited_by: Mapping[str, Where | XidCause] = field(default_factory=dict)
    """Checks earlier in the table whose verdict inhibits this one, and on which device."""
    inhibited_if: Callable[[Verdict, Verdict, bool], bool] | None = None
    """Condition on this check's verdict, the inhibiting verdict, and whether they occurred together. None: they
    occurred together, and a latched verdict is not inhibited by one with a lesser action."""
    windows: tuple[SampleWindow, ...] = ()
    """Sample windows that the check reads."""
    counts_causes: bool = False
    """Whether it counts repetitions of its causes: then what it has counted does not end with a cause."""
    limits: tuple[Limit, ...] = ()
    """Thresholds that an operator can set."""
    notice: str = ""
    """Subject of the agent's notice that reports the same fault."""
    acceptable: bool = False
    """Whether clearing the check by name accepts the measured value as the new baseline."""
    pages: bool = True
    """False if a warning has severity info."""

    @property
    def alert(self) -> str:
        """Return the name of the check's alert."""
        return alert_name(self.name)

    @property
    def ends_with_cause(self) -> bool:
        """Return whether a verdict ends, and its windows begin again, when a cause that explains it is cleared."""
        return bool(self.windows) and self.latch is None and not self.counts_causes

    @property
    def first_step(self) -> str:
        """Return the first of the numbered steps, in one line."""
        return " ".join(self.steps.partition("\n2. ")[0].removeprefix("1. ").split())

    @property
    def severities(self) -> tuple[tuple[Level, str], ...]:
        """Return level and severity of each of the check's alerts."""
        words = {FAIL: "critical", WARN: "warning" if self.pages else "info"}
        return tuple((level, words[level]) for level in self.levels)

    def cases(self, devices: DeviceCases) -> Iterator[tuple[str, Callable[[], Finding | None]]]:
        """Yield each device that the check evaluates, and the function that returns its finding."""
        if self.gpu is not None:
            yield from ((case.device, partial(self.gpu, case)) for case in devices.gpus)
        if self.port is not None:
            yield from ((case.device, partial(self.port, case)) for case in devices.ports)
        if self.node is not None:
            yield NODE, partial(self.node, devices.facts)
