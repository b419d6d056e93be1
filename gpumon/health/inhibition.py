"""Inhibition: one fault has one primary verdict, which inhibits the verdicts that it explains. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from gpumon.health import clearing
from gpumon.health.check_row import Check, Where, asks_for_no_less, covers
from gpumon.health.facts import Facts
from gpumon.health.node_health import ends_with_cause
from gpumon.health.remediation import performed_repair, rebooted_causes
from gpumon.health.table import BY_NAME
from gpumon.health.verdict import NODE, Clearance, Key, Verdict, VerdictChange, VerdictTransition

LEAD_SECONDS = 420.0
"""Maximum seconds by which a consequence may become a verdict earlier than its cause, whose finding may have to last
longer: a missing adapter becomes a verdict after six minutes.
"""
LAG_SECONDS = 300.0
"""Maximum seconds from the end of a cause to the start of a consequence, plus `after` of the consequence's check."""


def with_causes(verdicts: Mapping[Key, Verdict], facts: Facts) -> dict[Key, Verdict]:
    """Return the same verdicts with `inhibited_by` updated: the key of the cause, None for a primary verdict."""
    causes = _Causes(verdicts.values(), facts)
    return {key: causes.mark(verdict) for key, verdict in verdicts.items()}


def transitions_with_causes(
    due: Iterable[VerdictTransition], verdicts: Mapping[Key, Verdict], facts: Facts
) -> Iterator[VerdictTransition]:
    """Yield the due transitions with `inhibited_by` updated. Verdicts that they raise can be causes too."""
    transitions = tuple(due)
    coming = {each.verdict.key: each.verdict for each in transitions if each.change is not VerdictChange.CLEARED}
    causes = _Causes({**verdicts, **coming}.values(), facts)
    for each in transitions:
        yield each._replace(verdict=causes.mark(each.verdict))


def ended_with_causes(due: Iterable[VerdictTransition], open_verdicts: Mapping[Key, Verdict]) -> Iterator[Verdict]:
    """Yield the verdicts to clear (`ends_with_cause`) because a due transition clears their cause, or a cause of it."""
    cleared = {each.verdict.key for each in due if each.cleared_by not in {None, Clearance.NAMED}}
    ended = list(cleared)
    for cause in ended:
        for verdict in open_verdicts.values():
            if verdict.inhibited_by == cause and verdict.key not in cleared and ends_with_cause(verdict):
                ended.append(verdict.key)
                yield verdict


def counting_start(check: Check, device: str, facts: Facts) -> float | None:
    """Return the time, in seconds since the epoch, from which samples count for a check on a device; None: all count.

    It is the time at which a cause of the check's verdict was last cleared: earlier samples are consequences of that
    cause. If the check has a verdict that is not inhibited, all samples count.
    """
    verdict = facts.open.get((check.name, device))
    if not facts.cleared or not check.ends_with_cause or (verdict is not None and verdict.inhibited_by is None):
        return None
    begin = facts.now.wall - max(window.seconds for window in check.windows)
    times = (
        wall
        for (name, other), wall in facts.cleared.items()
        if wall > begin and _is_at(other, check.inhibited_where(name), device, facts)
    )
    return max(times, default=None)


def _is_at(other: str, where: Where | None, device: str, facts: Facts) -> bool:
    """Return whether `other` is a device whose verdict inhibits one of `device`."""
    match where:
        case "same":
            return other == device
        case "node":
            return other == NODE
        case "peer":
            return other in _peers(device, facts)
        case "held":
            return facts.job_holds(device, other)
        case "holder":
            return facts.job_holds(other, device)
    return where == "any"


class _Causes:
    """Index of the node's verdicts that finds for each verdict the one that inhibits it."""

    def __init__(self, verdicts: Iterable[Verdict], facts: Facts) -> None:
        self._facts = facts
        self._by_check: dict[str, list[Verdict]] = {}
        self._by_key: dict[Key, Verdict] = {}
        for verdict in verdicts:
            self._by_key[verdict.key] = verdict
            self._by_check.setdefault(verdict.check, []).append(verdict)

    def mark(self, verdict: Verdict) -> Verdict:
        """Return the verdict with `inhibited_by` updated.

        If a reboot for this verdict did not end its consequence, the consequence inhibits this verdict instead.
        """
        cause = self._listed_cause(verdict) or self._active_instead.get(verdict.key)
        return verdict if verdict.inhibited_by == cause else verdict._replace(inhibited_by=cause)

    @cached_property
    def _active_instead(self) -> Mapping[Key, Key]:
        """Return the key of the oldest consequence that is still active, by key of the verdict that causes it.

        Only verdicts for which the node was rebooted are in this mapping. The consequence is active, and so is its
        primary verdict. Neither of the two is a key of this mapping, so there is no cycle.
        """
        instead: dict[Key, Verdict] = {}
        for verdict in self._by_key.values():
            for cause in self._reboot_causes(verdict, self._by_key.values()):
                if covers(cause, verdict) and verdict.level >= cause.level and self._primary(verdict).active:
                    instead[cause.key] = min(verdict, instead.get(cause.key, verdict), key=self._start_time)
        return {key: verdict.key for key, verdict in instead.items()}

    def _reboot_causes(self, verdict: Verdict, causes: Iterable[Verdict]) -> Iterable[Verdict]:
        """Return those of `causes` for which the node was rebooted without ending this verdict, which is active."""
        check, facts = BY_NAME.get(verdict.check), self._facts
        since_reboot = (
            verdict.raised.boot_id == facts.boot_id or clearing.ineffective_repair(verdict, facts) is Clearance.REBOOT
        )
        if check is None or not verdict.active or not since_reboot:
            return ()
        return rebooted_causes(causes, check, verdict.device, facts.boot_id)

    def _listed_cause(self, verdict: Verdict) -> Key | None:
        """Return the key of the verdict that explains this one: of the check listed first, then the oldest."""
        check = BY_NAME.get(verdict.check)
        if check is None:
            return None
        for name in check.inhibited_by:
            causes = [
                each
                for each in self._by_check.get(name, ())
                if each.key != verdict.key
                and each.level >= verdict.level
                and _is_at(each.device, check.inhibited_where(name, each.evidence), verdict.device, self._facts)
                and self._explains(each, verdict, check)
            ]
            if causes:
                return min(causes, key=self._start_time).key
        return None

    def _explains(self, cause: Verdict, verdict: Verdict, check: Check) -> bool:
        primary, boot_id = self._primary(cause), self._facts.boot_id
        other_device = verdict.active and not primary.active and primary.device != verdict.device
        is_over = other_device and performed_repair(primary, boot_id) is Clearance.REBOOT
        if is_over or any(self._reboot_causes(verdict, [cause])):
            return False
        together = self._overlap_in_time(cause, verdict, check.after)
        if check.inhibited_if is not None:
            return check.inhibited_if(verdict, cause, together)
        return together and (check.latch is None or asks_for_no_less(verdict, primary))

    def _primary(self, verdict: Verdict) -> Verdict:
        """Return the last cause of this verdict. Causes are earlier in the table of checks, so there is no cycle."""
        cause = self._listed_cause(verdict)
        return verdict if cause is None else self._primary(self._by_key[cause])

    def _overlap_in_time(self, cause: Verdict, verdict: Verdict, debounce: float) -> bool:
        since = self._start_time(verdict)
        if self._start_time(cause) > since + _lead(cause):
            return False
        last = cause.last_active.on_clock(self._facts.instant)
        return cause.active or since <= last + debounce + LAG_SECONDS

    def _start_time(self, verdict: Verdict) -> float:
        return verdict.raised.on_clock(self._facts.instant)


def _lead(cause: Verdict) -> float:
    check = BY_NAME.get(cause.check)
    return max(LEAD_SECONDS, *(window.seconds for window in check.windows)) if check and check.windows else LEAD_SECONDS


def _peers(uuid: str, facts: Facts) -> Iterator[str]:
    """Yield the uuids of the GPUs at the other ends of this GPU's NVLinks."""
    by_address = {state.bus_id: state.uuid for state in facts.gpus}
    for state in facts.gpus:
        if state.uuid == uuid:
            yield from {by_address[peer.peer] for peer in state.peers.values() if peer.peer in by_address}
