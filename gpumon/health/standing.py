"""Everything that is judged, and what becomes of it by rulings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gpumon.health import order
from gpumon.health.terms import FAIL, OK, UNKNOWN, Level
from gpumon.health.verdict import REPAIRS, Key, Verdict, VerdictChange, VerdictTransition

MAX_TRANSITIONS = 500
"""Changes that are remembered here, whatever they are; the store knows more."""
MAX_WEIGHTY = 1000
"""Changes that are remembered beside them, because later judgements rest on them."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Findings worse than the verdict, or milder, that have not lasted long enough."""

    level: Level
    """Of the verdict from which they differ; OK: there is none."""
    lasted: Mapping[Level, float]
    """Seconds for which every look went at least so far from it, less those in which no agent ran. What swings between
    two levels is no less than the nearer one."""
    seen: float
    """When one was last seen, on the clock of Now.uptime; less than 0 before this life of the agent."""
    patience: float
    """Seconds for which they have to last."""

    def again(self, uptime: float) -> dict[Level, float]:
        """For how long they have lasted, when they are seen now."""
        elapsed = uptime - max(0.0, self.seen)
        return {level: seconds + elapsed for level, seconds in self.lasted.items()}

    def counts(self, uptime: float) -> bool:
        """Whether it does though nobody can tell now; unseen for longer than it has to last, it may have come anew."""
        return uptime - self.seen <= self.patience


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Everything that is judged, and what judging must remember."""

    open: Mapping[Key, Verdict] = field(default_factory=dict)
    history: tuple[VerdictTransition, ...] = ()
    """The newest last."""
    cleared: Mapping[Key, VerdictTransition] = field(default_factory=dict)
    """How each verdict was last cleared."""
    due: tuple[VerdictTransition, ...] = ()
    """What is to be stored, and then to be told."""
    pending: Mapping[Key, Pending] = field(default_factory=dict)
    broken: Mapping[Key, str] = field(default_factory=dict)
    """Which check failed on which device in the last look, and of what: a fault of the agent."""
    score: float | None = None
    """0 to 100: see score.py."""
    judged: bool = False
    """At least once: before that nobody knows."""
    judged_wall: float | None = None
    """When last, in seconds since the epoch."""
    judged_at: float | None = None
    """The same on CLOCK_BOOTTIME."""
    looked_at: float | None = None
    """When it was last judged in this life, on the clock of Now.uptime."""

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The worst first, then the oldest."""
        return order.worst_first(self.open.values())

    @property
    def primary(self) -> tuple[Verdict, ...]:
        """Those that follow from no other."""
        return order.primary(self.verdicts)

    def following(self, one: Verdict) -> Iterator[Verdict]:
        """All that follows from this one, directly or not."""
        return order.following(one, self.verdicts)

    @property
    def level(self) -> Level:
        """The worst of all."""
        return max((one.level for one in self.open.values()), default=OK if self.judged else UNKNOWN)

    def of(self, device: str) -> Level:
        """The worst of this device."""
        worst = max((one.level for one in self.open.values() if one.device == device), default=OK)
        return worst if self.judged else max(worst, UNKNOWN)


def ruled(health: Health, transitions: Iterable[VerdictTransition]) -> Health:
    """Health after these rulings, which are stored by now."""
    known, cleared, told = dict(health.open), dict(health.cleared), tuple(transitions)
    for transition in told:
        key = transition.verdict.key
        if transition.change is VerdictChange.CLEARED:
            known.pop(key, None)
            cleared[key] = transition
        else:
            known[key] = transition.verdict
    settled = {transition.verdict.key for transition in told}
    return replace(
        health,
        open=order.on_their_own(known),
        cleared=cleared,
        history=kept((*health.history, *told)),
        due=tuple(one for one in health.due if one.verdict.key not in settled),
    )


def recalled(
    health: Health,
    verdicts: Iterable[Verdict],
    transitions: Iterable[VerdictTransition],
    cleared: Mapping[Key, VerdictTransition],
) -> Health:
    """What the store knew; of both, what was judged since the start is newer, but not since when it is so."""
    known = {verdict.key: verdict for verdict in verdicts}
    for key, verdict in health.open.items():
        known[key] = _since(known[key], verdict) if key in known else verdict
    return replace(
        health,
        open=order.on_their_own(known),
        history=kept((*transitions, *health.history)),
        cleared={**cleared, **health.cleared},
    )


def is_weighty(transition: VerdictTransition) -> bool:
    """What was unfit for work, and what somebody did about it: ladder, score and repeat offender rest on it."""
    if transition.change is VerdictChange.CLEARED:
        return transition.way in REPAIRS
    return transition.change is VerdictChange.RAISED and transition.verdict.level is FAIL


def kept(transitions: tuple[VerdictTransition, ...]) -> tuple[VerdictTransition, ...]:
    """The newest of all, and the newest of those that have weight: a verdict that flaps drives out none of these."""
    if len(transitions) <= MAX_TRANSITIONS:
        return transitions
    older, newest = transitions[:-MAX_TRANSITIONS], transitions[-MAX_TRANSITIONS:]
    return (*[one for one in older if is_weighty(one)][-MAX_WEIGHTY:], *newest)


def _since(old: Verdict, new: Verdict) -> Verdict:
    return new._replace(since=old.since, since_at=old.since_at, since_boot=old.since_boot)
