"""The health of the node: open verdicts, their history, and the operator's requests to clear verdicts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gpumon.health.check_row import DAY, Paging
from gpumon.health.facts import Facts
from gpumon.health.table import BY_NAME
from gpumon.health.verdict import FAIL, JOB, OK, UNKNOWN, WARN, Key, Level, Verdict, VerdictChange, VerdictTransition
from gpumon.model.instant import Now

MAX_TRANSITIONS = 500
"""Maximum number of recent transitions in memory. The store has more."""
MAX_SIGNIFICANT = 1000
"""Maximum number of older significant transitions (`is_significant`) in memory."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Findings of one check on one device that have not lasted long enough to raise, change or clear a verdict."""

    level: Level
    """Level of the current verdict; OK if there is none."""
    lasted: Mapping[Level, float]
    """Seconds, by level, for which every finding had this level or one farther from the verdict's level. Findings that
    alternate between two levels count for the nearer level. Times without a running agent do not count.
    """
    seen: float
    """Time of the last of the findings, on the clock of Now.uptime in seconds; below 0 if before this agent run."""
    patience: float
    """Seconds for which the findings must last to change the verdict."""

    def lasting_seconds(self, uptime: float) -> dict[Level, float]:
        """Return, by level, the seconds for which the findings have lasted if they continue until `uptime`."""
        elapsed = uptime - max(0.0, self.seen)
        return {level: seconds + elapsed for level, seconds in self.lasted.items()}

    def is_valid(self, uptime: float) -> bool:
        """Return whether `lasted` still counts. After a longer gap the fault may have ended and started again."""
        return uptime - self.seen <= self.patience


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The open verdicts of the node, their history, and what the next evaluation needs."""

    open: Mapping[Key, Verdict] = field(default_factory=dict)
    history: tuple[VerdictTransition, ...] = ()
    """Transitions of verdicts, newest last."""
    cleared: Mapping[Key, VerdictTransition] = field(default_factory=dict)
    """Last transition that cleared a verdict, by the key of the verdict."""
    due: tuple[VerdictTransition, ...] = ()
    """Transitions that must be stored before they take effect."""
    pending: Mapping[Key, Pending] = field(default_factory=dict)
    failing_checks: Mapping[Key, str] = field(default_factory=dict)
    """Text of the exception by (check, device), for checks that raised one in the last evaluation."""
    score: float | None = None
    """Score of the node from 0 to 100, as `node_score` defines it; None before the first evaluation."""
    evaluated: Now | None = None
    """Time of the last evaluation of the checks; None before the first since the start, when the health is unknown."""

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Return the open verdicts, the worst first, then the oldest."""
        return tuple(sorted(self.open.values(), key=lambda verdict: (-verdict.level, verdict.raised.wall, verdict.key)))

    @property
    def primary(self) -> tuple[Verdict, ...]:
        """Return the open verdicts that are not inhibited, the worst first, then the oldest."""
        return tuple(verdict for verdict in self.verdicts if verdict.inhibited_by is None)

    @property
    def stated_reasons(self) -> Mapping[Key, str]:
        """Return, by key, the verdict's reason at its last transition. The current reason may have newer numbers."""
        return {transition.verdict.key: transition.verdict.reason for transition in self.history}

    def with_code(self, verdict: Verdict) -> Verdict:
        """Return the verdict if it has an error code, else the first one on its device with a code that it inhibits."""
        own = (verdict, *(each for each in self.consequences(verdict) if each.device == verdict.device))
        return next((each for each in own if each.code), verdict)

    def consequences(self, verdict: Verdict) -> Iterator[Verdict]:
        """Yield all verdicts that this one inhibits, directly or not."""
        for other in self.verdicts:
            if other.inhibited_by == verdict.key:
                yield other
                yield from self.consequences(other)

    @property
    def level(self) -> Level:
        """Return the worst level of the open verdicts; if none is open, OK, or UNKNOWN before the first evaluation."""
        return max((verdict.level for verdict in self.open.values()), default=OK if self.evaluated else UNKNOWN)

    def level_of(self, device: str) -> Level:
        """Return the worst level of the open verdicts on a device; at least UNKNOWN before the first evaluation."""
        worst = max((verdict.level for verdict in self.open.values() if verdict.device == device), default=OK)
        return worst if self.evaluated else max(worst, UNKNOWN)


def apply_transitions(health: Health, transitions: Iterable[VerdictTransition]) -> Health:
    """Return the health after these transitions, which must be stored already."""
    verdicts, cleared, stored = dict(health.open), dict(health.cleared), tuple(transitions)
    for transition in stored:
        key = transition.verdict.key
        if transition.change is VerdictChange.CLEARED:
            verdicts.pop(key, None)
            if not key[1].startswith(JOB):  # no check reads it, and jobs are many
                cleared[key] = transition
        else:
            verdicts[key] = transition.verdict
    stored_keys = {transition.verdict.key for transition in stored}
    levels = {key: verdict.level for key, verdict in verdicts.items()}
    return replace(
        health,
        open=_without_missing_causes(verdicts),
        pending={key: each for key, each in health.pending.items() if each.level is levels.get(key, OK)},
        cleared=cleared,
        history=trim_history((*health.history, *stored)),
        due=tuple(transition for transition in health.due if transition.verdict.key not in stored_keys),
    )


def restore_health(
    health: Health,
    verdicts: Iterable[Verdict],
    transitions: Iterable[VerdictTransition],
    cleared: Mapping[Key, VerdictTransition],
) -> Health:
    """Return the health with the verdicts and transitions of the store added.

    A verdict raised since the start replaces the stored one of its key, but keeps the time at which that was raised.
    """
    restored = {verdict.key: verdict for verdict in verdicts}
    for key, verdict in health.open.items():
        restored[key] = verdict._replace(raised=restored[key].raised) if key in restored else verdict
    return replace(
        health,
        open=_without_missing_causes(restored),
        history=trim_history((*transitions, *health.history)),
        cleared={**cleared, **health.cleared},
    )


def is_significant(transition: VerdictTransition) -> bool:
    """Return whether escalation, score or repeat-offender check read a transition: it stays in memory for long."""
    raised = transition.change is VerdictChange.RAISED and transition.verdict.level is FAIL
    return raised or transition.is_repair


def trim_history(transitions: tuple[VerdictTransition, ...]) -> tuple[VerdictTransition, ...]:
    """Return the newest transitions, and of the older ones the significant, which a flapping verdict must not evict."""
    if len(transitions) <= MAX_TRANSITIONS:
        return transitions
    older, newest = transitions[:-MAX_TRANSITIONS], transitions[-MAX_TRANSITIONS:]
    significant = [transition for transition in older if is_significant(transition)]
    return (*significant[-MAX_SIGNIFICANT:], *newest)


def _without_missing_causes(verdicts: Mapping[Key, Verdict]) -> dict[Key, Verdict]:
    """Return the verdicts; a verdict whose cause was cleared becomes primary at once, so that it is never hidden."""
    primary = {
        key: verdict._replace(inhibited_by=None)
        for key, verdict in verdicts.items()
        if verdict.inhibited_by and verdict.inhibited_by not in verdicts
    }
    return {**verdicts, **primary}


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingVerdict:
    """A Pending as it is stored. Its time is on the boot clock, which a restart of the agent does not reset."""

    check: str
    device: str
    level: Level
    lasted: Mapping[Level, float]
    patience: float
    seen_at: float
    """Boot clock time of the last of the pending findings."""
    boot_id: str


def pending_to_store(health: Health, boot_id: str) -> Iterator[PendingVerdict]:
    """Yield the pending findings as rows for the store; none before the first evaluation."""
    if health.evaluated is None:
        return
    offset = health.evaluated.at - health.evaluated.uptime
    for (check, device), pending in health.pending.items():
        yield PendingVerdict(
            check=check,
            device=device,
            level=pending.level,
            lasted=pending.lasted,
            patience=pending.patience,
            seen_at=pending.seen + offset,
            boot_id=boot_id,
        )


def restore_pending(stored: Iterable[PendingVerdict], now: Now, boot_id: str) -> dict[Key, Pending]:
    """Return the stored pending findings of this boot that are still valid. Time without an agent does not count."""
    valid = {}
    for row in stored:
        last_seen = now.uptime - (now.at - row.seen_at)
        pending = Pending(row.level, row.lasted, last_seen, row.patience)
        if row.boot_id == boot_id and pending.is_valid(now.uptime):
            valid[row.check, row.device] = pending
    return valid


BEST = 100.0
SCORED_SECONDS = 30 * DAY
COSTS: Mapping[Level, float] = {FAIL: 20.0, WARN: 4.0}


def node_score(transitions: Iterable[VerdictTransition], open_: Mapping[Key, Verdict], facts: Facts) -> float:
    """Return the score of the node, rounded to a tenth. `open_`: the open verdicts.

        score = 100 - sum over raised verdicts of cost x (1 - age / 30 days), never below 0

    Verdicts of one check, device and level cost once per day. The age of an open verdict is 0. Verdicts that were
    raised in maintenance cost nothing, unless they are still open after the maintenance.
    """
    ages: dict[tuple[Key, Level, int], float] = {}
    for transition in transitions:
        age = facts.age(transition)
        here = open_.get(transition.verdict.key)
        lasts = here is not None and here.episode == transition.verdict.episode
        planned = transition.muted and not (lasts and facts.maintenance is None)
        if _counts(transition) and not planned and age < SCORED_SECONDS:
            slot = (transition.verdict.key, transition.verdict.level, int(transition.verdict.raised.wall // DAY))
            ages[slot] = min(0.0 if lasts else age, ages.get(slot, SCORED_SECONDS))
    lost = sum(COSTS[level] * (1 - age / SCORED_SECONDS) for (_, level, _), age in ages.items())
    return round(max(0.0, BEST - lost), 1)


def _counts(transition: VerdictTransition) -> bool:
    """Return whether a transition raised a primary verdict whose alert is not only information."""
    verdict = transition.verdict
    check = BY_NAME.get(verdict.check)
    informs = verdict.level is WARN and check is not None and check.pages is Paging.NEVER
    # When a GPU reports its uuid, its verdict is raised again under the uuid: that is not a new fault.
    again = transition.change is VerdictChange.RAISED and verdict.raised.wall < transition.time.wall
    return (
        transition.change in {VerdictChange.RAISED, VerdictChange.CHANGED}
        and verdict.level in COSTS
        and not (informs or again or verdict.inhibited_by or verdict.device.startswith(JOB))
    )


def ends_with_cause(verdict: Verdict) -> bool:
    """Return whether this verdict is cleared together with its cause, because it would not be raised again now.

    Its check has no latch, and its fault is not active or its windows restart with the cause (Check.ends_with_cause).
    """
    check = BY_NAME.get(verdict.check)
    return check is not None and check.latch is None and (check.ends_with_cause or verdict.ok_seconds > 0)
