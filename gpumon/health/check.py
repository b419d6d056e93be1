"""How a row of the table of checks is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from gpumon.health.facts import Facts, GpuCase, PortCase
from gpumon.health.policy import Limit
from gpumon.health.sample_windows import SampleWindow
from gpumon.health.terms import ACTIONS, FAIL, WARN, Action, Level
from gpumon.health.verdict import NODE, Finding, Verdict

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0

Where = Literal["same", "node", "peer", "any"]
"""Of which device a cause is: the same as its consequence, the node, one that a link leads to, any at all."""


@dataclass(frozen=True, slots=True)
class Xids:
    """A verdict on an Xid is a cause only where it is one of these."""

    where: Where
    codes: frozenset[int]


@dataclass(frozen=True, slots=True)
class Latch:
    """What has happened stays, though it is seen no more, until the device is repaired or a person acknowledges it."""

    quiet: float | None = None
    """Seconds in which somebody looked and it was not so, after which it is forgiven; None: never."""
    repair: bool = True
    """A reset, or a reboot that proves health, ends it. False: it is no fault of a device."""


def same(*checks: str) -> dict[str, Where]:
    """For `follows`: these checks of the same device."""
    return dict.fromkeys(checks, "same")


def covers(verdict: Verdict, cause: Verdict) -> bool:
    """Whether who does what the cause asks for has done enough."""
    order = list(ACTIONS)
    return order.index(cause.action) >= order.index(verdict.action)


def comes_first(verdict: Verdict, cause: Verdict) -> bool:
    """Whether what the cause asks for is no less. Nobody has to look into it before the reboot that is due anyhow."""
    return covers(verdict, cause) or (verdict.action is Action.INSPECT and cause.action is Action.REBOOT)


def beside(verdict: Verdict, cause: Verdict, together: bool) -> bool:  # noqa: FBT001 - see Check.because
    """For `because`: what was found at the same time, and asks for as much."""
    return together and covers(verdict, cause)


_CAMEL_CASE = {"allreduce": "AllReduce"}


def alert_name(check: str) -> str:
    """Return the name of a check's alert: the check's name in CamelCase."""
    return "".join(_CAMEL_CASE.get(word, word.capitalize()) for word in check.split("_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One row."""

    name: str
    """The value of the label `check`."""
    levels: tuple[Level, ...] = (FAIL,)
    """What it can say, beside OK and UNKNOWN."""
    help: str
    """One sentence: what is wrong when it speaks."""
    steps: str
    """For the runbook: what a person does, as a numbered list in Markdown."""
    gpu: Callable[[GpuCase], Finding | None] | None = None
    """Judges one GPU. Answers WELL, a finding, or None when nobody can tell now: then what was found stays."""
    port: Callable[[PortCase], Finding | None] | None = None
    """The same of an InfiniBand or RoCE port."""
    node: Callable[[Facts], Finding | None] | None = None
    """The same of the node or the agent. Exactly one of the three is given."""
    after: float = 0.0
    """Seconds for which the finding must last before it is a verdict."""
    clear_after: float = MINUTE
    """Seconds for which the device must be well before the verdict goes; not of what is latched."""
    latch: Latch | None = None
    grace: bool = False
    """Not judged for a while after a boot: links train, daemons start."""
    follows: Mapping[str, Where | Xids] = field(default_factory=dict)
    """Checks further up in the table whose verdict explains this one, and of which device."""
    because: Callable[[Verdict, Verdict, bool], bool] | None = None
    """Of a verdict of this check, and one of those that it follows from: whether that one does explain it. The third
    says whether they came at the same time; it is for this to say whether that matters. None: it does, and what is
    latched follows from nothing that asks for less."""
    windows: tuple[SampleWindow, ...] = ()
    """Sample windows that it reads."""
    limits: tuple[Limit, ...] = ()
    """What an operator can set of it."""
    notice: str = ""
    """Subject of the agent's notice that says the same."""
    acceptable: bool = False
    """To acknowledge it by name is to say that it is as it should be: what was measured is normal from now on."""
    pages: bool = True
    """False: its warning is for information."""

    @property
    def alert(self) -> str:
        """Return the name of the check's alert."""
        return alert_name(self.name)

    @property
    def first_step(self) -> str:
        """Return the first of the numbered steps, in one line."""
        return " ".join(self.steps.partition("\n2. ")[0].removeprefix("1. ").split())

    @property
    def severities(self) -> tuple[tuple[Level, str], ...]:
        """Level and severity of each alert that it makes."""
        words = {FAIL: "critical", WARN: "warning" if self.pages else "info"}
        return tuple((level, words[level]) for level in self.levels)

    def cases(self, facts: Facts) -> Iterator[tuple[str, Callable[[], Finding | None]]]:
        """Each device that it judges, and what asks it for its finding; that answers None where nobody can tell."""
        if self.gpu is not None:
            yield from ((case.device, partial(self.gpu, case)) for case in facts.gpu_cases)
        if self.port is not None:
            yield from ((case.device, partial(self.port, case)) for case in facts.port_cases)
        if self.node is not None:
            yield NODE, partial(self.node, facts)
