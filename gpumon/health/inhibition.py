"""Inhibition: one fault has one primary verdict, which inhibits the verdicts that it explains. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from gpumon.health import clearing
from gpumon.health.check_row import Check, Where, XidCause, asks_for_no_less, covers
from gpumon.health.facts import Facts
from gpumon.health.remediation import performed_repair, rebooted_causes
from gpumon.health.table import BY_NAME
from gpumon.health.verdict import NODE, Clearance, Key, Verdict, VerdictChange, VerdictTransition

LEAD_SECONDS = 300.0
"""Seconds by which a consequence may be found before its cause, because both must last before they are verdicts."""
LAG_SECONDS = 300.0
"""Seconds after the end of a cause in which a consequence may start, in addition to the time that it must last."""


def with_causes(verdicts: Mapping[Key, Verdict], facts: Facts) -> dict[Key, Verdict]:
    """Return the same verdicts, each with the verdict that inhibits it."""
    causes = _Causes(verdicts.values(), facts)
    return {key: _with_cause(verdict, causes.cause_of(verdict)) for key, verdict in verdicts.items()}


def transitions_with_causes(
    due: Iterable[VerdictTransition], verdicts: Mapping[Key, Verdict], facts: Facts
) -> Iterator[VerdictTransition]:
    """Yield the due transitions, each verdict with the one that will inhibit it."""
    transitions = tuple(due)
    coming = {each.verdict.key: each.verdict for each in transitions if each.change is not VerdictChange.CLEARED}
    causes = _Causes({**verdicts, **coming}.values(), facts)
    for each in transitions:
        yield each._replace(verdict=_with_cause(each.verdict, causes.cause_of(each.verdict)))


def ends_with_cause(verdict: Verdict) -> bool:
    """Return whether the verdict ends when its cause is cleared, because nothing that is present now would raise it."""
    check = BY_NAME.get(verdict.check)
    return check is not None and check.latch is None and (check.ends_with_cause or verdict.ok_seconds > 0)


def ended_with_causes(due: Iterable[VerdictTransition], open_verdicts: Mapping[Key, Verdict]) -> Iterator[Verdict]:
    """Yield the verdicts that end because the due transitions clear what inhibits them."""
    cleared = {each.verdict.key for each in due if each.cleared_by not in {None, Clearance.NAMED}}
    ended = list(cleared)
    for cause in ended:
        for verdict in open_verdicts.values():
            if verdict.inhibited_by == cause and verdict.key not in cleared and ends_with_cause(verdict):
                ended.append(verdict.key)
                yield verdict


def counted_from(check: Check, device: str, facts: Facts) -> float | None:
    """Return when a cause of this check on this device was last cleared, in seconds since the epoch.

    What its windows hold from before is a consequence of it. A verdict that is not inhibited keeps its windows.
    """
    verdict = facts.open.get((check.name, device))
    if not check.ends_with_cause or (verdict is not None and verdict.inhibited_by is None):
        return None
    begin = facts.now.wall - max(window.seconds for window in check.windows)
    recent = [(key, wall) for key, wall in facts.cleared.items() if wall > begin and key[0] in check.inhibited_by]
    return max((wall for key, wall in recent if _is_at(key, check, device, facts)), default=None)


def _is_at(cause: Key, check: Check, device: str, facts: Facts) -> bool:
    rule = check.inhibited_by[cause[0]]
    where = rule.where if isinstance(rule, XidCause) else rule
    return where == "any" or cause[1] in _devices(device, where, facts)


def _with_cause(verdict: Verdict, cause: Key | None) -> Verdict:
    return verdict if verdict.inhibited_by == cause else verdict._replace(inhibited_by=cause)


class _Causes:
    """The verdicts of the node, searched for causes of one another."""

    def __init__(self, verdicts: Iterable[Verdict], facts: Facts) -> None:
        self._facts = facts
        self._by_check: dict[str, list[Verdict]] = {}
        self._by_key: dict[Key, Verdict] = {}
        for verdict in verdicts:
            self._by_key[verdict.key] = verdict
            self._by_check.setdefault(verdict.check, []).append(verdict)

    def cause_of(self, verdict: Verdict) -> Key | None:
        """Return the cause of a verdict. If a reboot did not end its consequence, that active verdict is the cause."""
        cause = self._listed_cause(verdict)
        return self._active_instead.get(verdict.key) if cause is None else cause

    @cached_property
    def _active_instead(self) -> Mapping[Key, Key]:
        """Map each verdict for which the node was rebooted to the active one that shows that this did not help.

        That one is active, and so is its cause: neither is a key of this mapping, so there is no cycle.
        """
        instead: dict[Key, Verdict] = {}
        for verdict in self._by_key.values():
            for cause in self._reboot_causes(verdict, self._by_key.values()):
                if covers(cause, verdict) and verdict.level >= cause.level and self._primary(verdict).active:
                    instead[cause.key] = min(verdict, instead.get(cause.key, verdict), key=self._since)
        return {key: verdict.key for key, verdict in instead.items()}

    def _reboot_causes(self, verdict: Verdict, causes: Iterable[Verdict]) -> Iterable[Verdict]:
        """Return the causes for which the node was rebooted although this verdict is active.

        It started after the reboot, or has had time to recover.
        """
        check, facts = BY_NAME.get(verdict.check), self._facts
        since_reboot = (
            verdict.since_boot == facts.boot_id or clearing.ineffective_repair(verdict, facts) is Clearance.REBOOT
        )
        if check is None or not verdict.active or not since_reboot:
            return ()
        return rebooted_causes(causes, check, verdict.device, facts.boot_id)

    def _is_over(self, primary: Verdict, verdict: Verdict) -> bool:
        """Return whether the primary verdict's reboot was done: it must not hide a fault of another device."""
        other_device = verdict.active and not primary.active and primary.device != verdict.device
        return other_device and performed_repair(primary, self._facts.boot_id) is Clearance.REBOOT

    def _listed_cause(self, verdict: Verdict) -> Key | None:
        """Return the first cause in the order of the check's row, and the oldest of several verdicts of one check.

        A verdict is never inhibited by one of a lower level.
        """
        check = BY_NAME.get(verdict.check)
        if check is None:
            return None
        for name, cause in check.inhibited_by.items():
            where, codes = (cause.where, cause.codes) if isinstance(cause, XidCause) else (cause, None)
            candidates = [
                each for each in self._by_check.get(name, ()) if codes is None or each.evidence.get("xid") in codes
            ]
            devices = set(_devices(verdict.device, where, self._facts)) if candidates else set()
            causes = [
                each
                for each in candidates
                if each.key != verdict.key
                and (where == "any" or each.device in devices)
                and each.level >= verdict.level
                and self._explains(each, verdict, check)
            ]
            if causes:
                return min(causes, key=self._since).key
        return None

    def _explains(self, cause: Verdict, verdict: Verdict, check: Check) -> bool:
        if any(self._reboot_causes(verdict, [cause])) or self._is_over(self._primary(cause), verdict):
            return False
        together = self._overlap_in_time(cause, verdict, check.after)
        if check.inhibited_if is not None:
            return check.inhibited_if(verdict, cause, together)
        return together and (check.latch is None or asks_for_no_less(verdict, self._primary(cause)))

    def _primary(self, verdict: Verdict) -> Verdict:
        """Return the primary verdict, on which an operator acts. Causes are earlier in the table: there is no cycle."""
        cause = self._listed_cause(verdict)
        return verdict if cause is None else self._primary(self._by_key[cause])

    def _overlap_in_time(self, cause: Verdict, verdict: Verdict, debounce: float) -> bool:
        """Return whether the cause was neither raised long after the verdict, nor over when the verdict started."""
        since = self._since(verdict)
        if self._since(cause) > since + _lead(cause):
            return False
        last = self._facts.on_this_clock(cause.seen, cause.seen_at, cause.boot_id)
        return cause.active or since <= last + debounce + LAG_SECONDS

    def _since(self, verdict: Verdict) -> float:
        return self._facts.on_this_clock(verdict.since, verdict.since_at, verdict.since_boot)


def _lead(cause: Verdict) -> float:
    """Return the maximum seconds by which this cause may be found later than its consequence."""
    check = BY_NAME.get(cause.check)
    return max(LEAD_SECONDS, *(window.seconds for window in check.windows)) if check and check.windows else LEAD_SECONDS


def _devices(device: str, where: Where, facts: Facts) -> Iterator[str]:
    match where:
        case "same":
            yield device
        case "node":
            yield NODE
        case "peer":
            yield from _peers(device, facts)
        case "any":
            pass


def _peers(uuid: str, facts: Facts) -> Iterator[str]:
    """Yield the GPUs at the other ends of a GPU's NVLinks."""
    by_address = {state.bus_id: state.uuid for state in facts.gpus}
    for state in facts.gpus:
        if state.uuid == uuid:
            yield from {by_address[peer.peer] for peer in state.peers.values() if peer.peer in by_address}
