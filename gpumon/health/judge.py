"""From findings to verdicts: they have to last, they stay until something clears them. Pure.

A check that returns unknown changes nothing. Transitions that are due are stored first. They take effect when they
return in a VerdictTransitions message.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpumon.health import clearing, folding, ladder, score
from gpumon.health.check import HOUR, MINUTE, Check, Latch
from gpumon.health.facts import Facts
from gpumon.health.standing import Health, Pending
from gpumon.health.table import BY_NAME, CHECKS
from gpumon.health.terms import OK, UNKNOWN, Level, Way
from gpumon.health.verdict import NODE, Finding, Key, Verdict, VerdictChange, VerdictTransition
from gpumon.model.error_event import UNNAMED

GONE_AFTER = 10 * MINUTE
"""Seconds for which a device has to be absent from the inventory before its verdicts go: it is expected no more."""
SAME = 1e-3
"""Seconds between two times of one event, as they come out of the clocks."""


def judge(health: Health, facts: Facts, checks: Iterable[Check] = CHECKS) -> Health:
    """Health after one look with these checks."""
    checks = [check for check in checks if check.name not in facts.policy.disabled]
    passed = 0.0 if health.looked_at is None else facts.now.uptime - health.looked_at
    known, pending, due = dict(health.open), dict[Key, Pending](), list[VerdictTransition]()
    unseen, broken = dict(health.pending), dict[Key, str]()
    for check in checks:
        graced = check.grace and facts.uptime < facts.policy.boot_grace
        for key, finding in _asked(check, facts, broken):
            told = None if graced and not (finding and finding.ended) else finding
            case = _Case(check, key[1], told, known.get(key), unseen.pop(key, None), passed)
            verdict, waiting, transitions = case.judged(facts)
            if verdict is not None:
                known[key] = verdict
            if waiting is not None:
                pending[key] = waiting
            due += transitions
    names = {check.name for check in checks}
    due += _of_devices(known, facts, names, health.pending, pending)
    for key, one in unseen.items():  # of a device that is not there now, as it may be after a start
        if key[0] in names and one.counts(facts.now.uptime):
            pending.setdefault(key, one)
    return replace(
        health,
        open=folding.folded(known, facts),
        pending=pending,
        broken=broken,
        due=tuple(folding.placed(due, known, facts)),
        score=score.score(health.history, known, facts),
        judged=True,
        judged_wall=facts.now.wall,
        judged_at=facts.now.at,
        looked_at=facts.now.uptime,
    )


def _asked(check: Check, facts: Facts, broken: dict[Key, str]) -> Iterator[tuple[Key, Finding | None]]:
    """What it says of each device. One that raises can tell nothing of that device, and takes no other with it."""
    for device, ask in check.cases(facts):
        key, finding = (check.name, device), None
        try:
            finding = ask()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other checks go on
            broken[key] = _trouble(error)
        yield key, finding


def _trouble(error: Exception) -> str:
    """What was raised, and where."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"


def resumed(verdicts: Iterable[Verdict], boot_id: str) -> Iterator[Verdict]:
    """As a life of the agent goes on with what the store knew. Who was well before a reboot has not proved it since."""
    for one in verdicts:
        proves = _proves(BY_NAME.get(one.check)) and one.boot_id != boot_id
        yield one._replace(well=0.0) if proves else one


def _proves(check: Check | None) -> bool:
    """Whether a repair ends its verdicts, when the device has been well for a while since."""
    return check is not None and check.latch is not None and check.latch.repair


def transition(verdict: Verdict, change: VerdictChange, facts: Facts, way: Way | None = None) -> VerdictTransition:
    """A change, now."""
    return VerdictTransition(
        verdict=verdict,
        change=change,
        wall=facts.now.wall,
        at=facts.now.at,
        boot_id=facts.boot_id,
        way=way,
        muted=facts.maintenance is not None,
    )


@dataclass(frozen=True, slots=True)
class _Case:
    """One check of one device."""

    check: Check
    device: str
    finding: Finding | None
    verdict: Verdict | None
    pending: Pending | None
    passed: float
    """Seconds since the last look."""

    def judged(self, facts: Facts) -> tuple[Verdict | None, Pending | None, list[VerdictTransition]]:
        """The verdict that there is, brought up to date; what waits; what is due."""
        finding = self._told(facts)
        if finding is None:
            # Nobody can tell now. What was waited for goes on waiting for a while: it may have gone on unseen.
            verdict = None if self.verdict is None else self.verdict._replace(active=False)
            waits = self.pending is not None and self.pending.counts(facts.now.uptime)
            return verdict, self.pending if waits else None, []
        verdict = self._updated(finding, facts)
        current = OK if verdict is None else verdict.level
        if verdict is not None and finding.level <= current and self.check.latch is not None and finding.ended is None:
            return verdict, None, self._of_latched(verdict, finding, self.check.latch, facts)
        if finding.level == current:
            return verdict, None, [] if verdict is None else self._another_action(verdict, finding, facts)
        patience = self.check.after if finding.level > current else self.check.clear_after
        waiting = self._waiting(current, finding.level, patience, facts.now.uptime)
        if waiting.lasted[finding.level] < patience and finding.ended is not Way.GONE:
            return verdict, waiting, []
        return verdict, waiting, [self._due(verdict, finding, facts)]

    def _told(self, facts: Facts) -> Finding | None:
        """What the check says, where it can: UNKNOWN takes nothing back, nor does who does not look back far enough."""
        finding, verdict = self.finding, self.verdict
        if finding is None or verdict is None or finding.level >= verdict.level:
            return finding
        return None if finding.level is UNKNOWN or not self._looks_back(verdict, facts) else finding

    def _looks_back(self, verdict: Verdict, facts: Facts) -> bool:
        """Whether what made the verdict would still be seen. A restart forgets it; it counts for its whole time."""
        now, window = facts.now, max((window.seconds for window in self.check.windows), default=0.0)
        before = verdict.boot_id == facts.boot_id and verdict.seen_at <= now.at - now.uptime
        return now.uptime >= min(HOUR, window) and not (before and now.at - verdict.seen_at < window)

    def _waiting(self, current: Level, found: Level, patience: float, uptime: float) -> Pending:
        known = self.pending.again(uptime) if self.pending is not None and self.pending.level is current else {}
        passed = (one for one in Level if current < one <= found or found <= one < current)
        return Pending(current, {one: known.get(one, 0.0) for one in passed}, uptime, patience)

    def _updated(self, finding: Finding, facts: Facts) -> Verdict | None:
        """The verdict with what is new about it and needs no row in the store."""
        known = self.verdict
        if known is None:
            return None
        reset_at = clearing.reset_at(known, facts)
        if reset_at != known.reset_at:
            since_reset = reset_at is not None and _proves(self.check)
            known = known._replace(reset_at=reset_at, well=0.0 if since_reset else known.well)
        well = known.well + (self.passed if clearing.is_watched(self.device, facts) else 0.0)
        if finding.level < known.level and (finding.level is OK or self.check.latch is not None):
            return known._replace(active=False, well=well)
        if finding.level == known.level:
            known = known._replace(reason=finding.reason, evidence=finding.evidence)
        if finding.at is not None and finding.at <= SAME + facts.on_this_clock(
            known.seen, known.seen_at, known.boot_id
        ):
            return known._replace(active=False, well=well)
        return _so(known, finding, facts)

    def _due(self, verdict: Verdict | None, finding: Finding, facts: Facts) -> VerdictTransition:
        if verdict is None:
            return transition(self._made(finding, facts), VerdictChange.RAISED, facts)
        if finding.level is OK:
            told = None if finding.ended is Way.WELL else finding.ended
            return transition(verdict, VerdictChange.CLEARED, facts, told or clearing.found_well(verdict, facts))
        changed = verdict._replace(level=finding.level, reason=finding.reason, evidence=finding.evidence)
        action = ladder.escalated(finding.action, verdict.key, facts)
        return transition(_so(changed._replace(action=action), finding, facts), VerdictChange.CHANGED, facts)

    def _made(self, finding: Finding, facts: Facts) -> Verdict:
        """A verdict of this finding."""
        made = Verdict(
            check=self.check.name,
            device=self.device,
            level=finding.level,
            reason=finding.reason,
            action=ladder.escalated(finding.action, (self.check.name, self.device), facts),
            evidence=finding.evidence,
            since=facts.now.wall,
            since_at=facts.now.at,
            since_boot=facts.boot_id,
            seen=facts.now.wall,
            seen_at=facts.now.at,
            boot_id=facts.boot_id,
        )
        return _so(made, finding, facts)

    def _of_latched(self, verdict: Verdict, finding: Finding, latch: Latch, facts: Facts) -> list[VerdictTransition]:
        """It is cleared, or stays with another action."""
        way = None if verdict.active else clearing.way(verdict, latch, facts)
        if way is not None:
            return [transition(verdict, VerdictChange.CLEARED, facts, way)]
        return self._another_action(verdict, finding, facts) if finding.level == verdict.level else []

    def _another_action(self, verdict: Verdict, finding: Finding, facts: Facts) -> list[VerdictTransition]:
        """Another one at the same level."""
        action = ladder.escalated(finding.action, verdict.key, facts)
        if action == verdict.action:
            return []
        return [transition(verdict._replace(action=action), VerdictChange.CHANGED, facts)]


def _so(verdict: Verdict, finding: Finding, facts: Facts) -> Verdict:
    """The verdict, last seen when the finding says."""
    now = facts.now
    if finding.at is None:
        return verdict._replace(active=True, seen=now.wall, seen_at=now.at, boot_id=facts.boot_id, well=0.0)
    at = now.at - max(0.0, now.wall - finding.at)
    boot_id = facts.boot_id if at >= 0 else ""  # some earlier one
    return verdict._replace(active=False, seen=finding.at, seen_at=at, boot_id=boot_id, well=0.0)


def _of_devices(
    known: Mapping[Key, Verdict],
    facts: Facts,
    checks: set[str],
    waited: Mapping[Key, Pending],
    pending: dict[Key, Pending],
) -> Iterator[VerdictTransition]:
    """Of checks that are not made, GPUs that have told their names by now, and devices that are expected no more."""
    names = {f"{UNNAMED}{state.bus_id.lower()}": state.uuid for state in facts.gpus}
    here = {NODE, *(state.uuid for state in facts.gpus), *(case.device for case in facts.port_cases)}
    for key, verdict in known.items():
        if verdict.check not in checks:
            yield transition(verdict, VerdictChange.CLEARED, facts, Way.OFF)
        elif verdict.device in here:
            continue
        elif verdict.device in facts.gone:
            yield transition(verdict, VerdictChange.CLEARED, facts, Way.GONE)
        elif verdict.device in names:
            yield from _named(verdict, names[verdict.device], known, facts)
        elif facts.node.nvml_up if is_gpu(verdict.device) else facts.ports_listed:
            uptime = facts.now.uptime
            lasted = waited[key].again(uptime).get(OK, 0.0) if key in waited else 0.0
            pending[key] = Pending(verdict.level, {OK: lasted}, uptime, GONE_AFTER)
            if lasted >= GONE_AFTER:
                yield transition(verdict, VerdictChange.CLEARED, facts, Way.GONE)


def _named(verdict: Verdict, uuid: str, known: Mapping[Key, Verdict], facts: Facts) -> Iterator[VerdictTransition]:
    """It goes on under the GPU's own name, with all that is known of it, unless that has one as bad."""
    yield transition(verdict, VerdictChange.CLEARED, facts, Way.NAMED)
    other = known.get((verdict.check, uuid))
    if other is None or other.level < verdict.level:
        yield transition(
            verdict._replace(device=uuid), VerdictChange.RAISED if other is None else VerdictChange.CHANGED, facts
        )


def is_gpu(device: str) -> bool:
    """Not the node, nor a port."""
    return bool(device) and "/" not in device
