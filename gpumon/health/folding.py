"""One fault, one primary verdict: what follows from it stands under it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from gpumon.health import clearing, tried
from gpumon.health.answered import repaired
from gpumon.health.check import Check, Where, Xids, comes_first, covers
from gpumon.health.facts import Facts
from gpumon.health.table import BY_NAME
from gpumon.health.terms import Way
from gpumon.health.verdict import NODE, Key, Verdict, VerdictChange, VerdictTransition

LEAD_SECONDS = 300.0
"""How much earlier than its cause a consequence may have been found: both have to last before they are verdicts."""
LAG_SECONDS = 300.0
"""How long after its cause was last seen a consequence may begin, beside the time for which it has to last."""


def folded(open_: Mapping[Key, Verdict], facts: Facts) -> dict[Key, Verdict]:
    """The same verdicts, each knowing what it follows from."""
    causes = _Causes(open_.values(), facts)
    return {key: _placed(verdict, causes.of(verdict)) for key, verdict in open_.items()}


def placed(due: Iterable[VerdictTransition], open_: Mapping[Key, Verdict], facts: Facts) -> Iterator[VerdictTransition]:
    """What is due, knowing what it will follow from."""
    transitions = tuple(due)
    coming = {one.verdict.key: one.verdict for one in transitions if one.change is not VerdictChange.CLEARED}
    causes = _Causes({**open_, **coming}.values(), facts)
    for one in transitions:
        yield one._replace(verdict=_placed(one.verdict, causes.of(one.verdict)))


def _placed(verdict: Verdict, under: Key | None) -> Verdict:
    return verdict if verdict.under == under else verdict._replace(under=under)


class _Causes:
    """What there is, by check."""

    def __init__(self, verdicts: Iterable[Verdict], facts: Facts) -> None:
        self._facts = facts
        self._by_check: dict[str, list[Verdict]] = {}
        self._known: dict[Key, Verdict] = {}
        for one in verdicts:
            self._known[one.key] = one
            self._by_check.setdefault(one.check, []).append(one)

    def of(self, verdict: Verdict) -> Key | None:
        """What it follows from; where it was answered by a reboot, and that did not help: what is so now."""
        found = self._of(verdict)
        return self._now.get(verdict.key) if found is None else found

    @cached_property
    def _now(self) -> Mapping[Key, Key]:
        """Of each verdict that a reboot has answered, the one that tells what its device has all the same.

        That is active, and so is what it follows from: none of these stands here itself, and there is no circle.
        """
        now: dict[Key, Verdict] = {}
        for one in self._known.values():
            for cause in self._answered(one, self._known.values()):
                if covers(cause, one) and one.level >= cause.level and self._top(one).active:
                    now[cause.key] = min(one, now.get(cause.key, one), key=self._since)
        return {key: one.key for key, one in now.items()}

    def _answered(self, verdict: Verdict, causes: Iterable[Verdict]) -> Iterable[Verdict]:
        """Those for which the node was rebooted, and this is so all the same: it began since, or has had its time."""
        check, facts = BY_NAME.get(verdict.check), self._facts
        in_vain = verdict.since_boot == facts.boot_id or clearing.in_vain(verdict, facts) is Way.REBOOT
        if check is None or not verdict.active or not in_vain:
            return ()
        return tried.rebooted(causes, check, verdict.device, facts.boot_id)

    def _is_past(self, top: Verdict, verdict: Verdict) -> bool:
        """The reboot that it asked for was done, and it is no more: it must not hide what another device has."""
        elsewhere = verdict.active and not top.active and top.device != verdict.device
        return elsewhere and repaired(top, self._facts.boot_id) is Way.REBOOT

    def _of(self, verdict: Verdict) -> Key | None:
        """The first in the order of the row, the one that was found first among several; no milder one may hide it."""
        check = BY_NAME.get(verdict.check)
        if check is None:
            return None
        for name, cause in check.follows.items():
            where, codes = (cause.where, cause.codes) if isinstance(cause, Xids) else (cause, None)
            known = [one for one in self._by_check.get(name, ()) if codes is None or one.evidence.get("xid") in codes]
            devices = set(_devices(verdict.device, where, self._facts)) if known else set()
            causes = [
                one
                for one in known
                if one.key != verdict.key
                and (where == "any" or one.device in devices)
                and one.level >= verdict.level
                and self._explains(one, verdict, check)
            ]
            if causes:
                return min(causes, key=self._since).key
        return None

    def _explains(self, cause: Verdict, verdict: Verdict, check: Check) -> bool:
        if any(self._answered(verdict, [cause])) or self._is_past(self._top(cause), verdict):
            return False
        together = self._together(cause, verdict, check.after)
        if check.because is not None:
            return check.because(verdict, cause, together)
        return together and (check.latch is None or comes_first(verdict, self._top(cause)))

    def _top(self, cause: Verdict) -> Verdict:
        """What people are told to act on. Causes stand further up in the table: there is no circle."""
        under = self._of(cause)
        return cause if under is None else self._top(self._known[under])

    def _together(self, cause: Verdict, verdict: Verdict, debounce: float) -> bool:
        """Whether the cause neither came long after it, nor was over when it began."""
        since = self._since(verdict)
        if self._since(cause) > since + _lead(cause):
            return False
        last = self._facts.on_this_clock(cause.seen, cause.seen_at, cause.boot_id)
        return cause.active or since <= last + debounce + LAG_SECONDS

    def _since(self, verdict: Verdict) -> float:
        return self._facts.on_this_clock(verdict.since, verdict.since_at, verdict.since_boot)


def _lead(cause: Verdict) -> float:
    """Seconds that it may take to find the cause while its consequence is found at once."""
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
    """The GPUs at the other ends of a GPU's NVLinks."""
    by_address = {state.bus_id: state.uuid for state in facts.gpus}
    for state in facts.gpus:
        if state.uuid == uuid:
            yield from {by_address[peer.peer] for peer in state.peers.values() if peer.peer in by_address}
