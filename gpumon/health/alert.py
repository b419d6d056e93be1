"""The agent's own alerts: a view of the verdicts, in the states of Prometheus: pending, firing, resolved. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gpumon.health.alert_texts import PAGING, AlertText, fill, text_of
from gpumon.health.check_row import split_action
from gpumon.health.node_health import Health
from gpumon.health.remediation import action_sentence
from gpumon.health.verdict import UNKNOWN, Key, Verdict, VerdictChange, VerdictTransition, device_of, labels_of_device
from gpumon.model.gpu_state import GpuState
from gpumon.model.reading import Labels

PENDING, FIRING, RESOLVED = "pending", "firing", "resolved"
RESOLVED_SECONDS = 900.0
"""Seconds for which the agent shows a resolved alert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert on the node, a GPU or a port: pending, firing or recently resolved, as Prometheus shows it."""

    rule: str
    severity: str
    page: str
    """When the alert pages: `night` (at any hour), `day` (a ticket) or `never`."""
    area: str
    """Value of the label `class`, by which a receiver is chosen."""
    state: str
    labels: Labels
    """Sorted pairs of label and value: `check`; for a GPU also `gpu` and `uuid`, for a port `device` and `port`, for
    a job `job_id`.
    """
    summary: str
    description: str
    action: str
    """What to do, as `gpumon status` shows it: the verdict's action, then the first step of the runbook."""
    runbook_url: str
    since: float
    """Time (seconds since the epoch) at which the verdict was raised; if pending, at which its finding began."""
    firing_since: float | None = None
    """Time at which the alert began to fire, in seconds since the epoch; None while it is pending."""
    resolved_at: float | None = None
    """Time at which the alert was resolved, in seconds since the epoch; None before."""

    @property
    def identity(self) -> Labels:
        """Return the sorted labels, as in Prometheus, that distinguish this alert from the other alerts of the node."""
        own = ("alertname", self.rule), ("class", self.area), ("page", self.page), ("severity", self.severity)
        return tuple(sorted((*self.labels, *own)))

    @property
    def key(self) -> Key:
        """Return the key (check, device) of the verdict that caused this alert."""
        labels = dict(self.labels)
        return labels["check"], device_of(labels)


def alerts_of(health: Health, gpus: Iterable[GpuState], *, boot_id: str, in_maintenance: bool) -> tuple[Alert, ...]:
    """Return the alerts at the last evaluation of the checks: firing and pending, then recently resolved ones.

    In maintenance, alerts of severity critical or warning are not active.
    """
    indexes = {name: state.index for state in gpus for name in (state.uuid, state.pci_name)}
    alerts = (*_of_verdicts(health, indexes, boot_id), *_of_pending(health, indexes))
    muted = PAGING if in_maintenance else ()
    active = {each.identity: each for each in alerts if each.state != RESOLVED and each.severity not in muted}
    resolved = {each.identity: each for each in alerts if each.state == RESOLVED and each.identity not in active}
    return (*active.values(), *resolved.values())


def _stays(health: Health) -> Iterator[tuple[Verdict, float, VerdictTransition | None]]:
    """Yield (verdict, start, end) for each time in which a verdict had one level: what an alert rule selects.

    The end is the transition that cleared the verdict or changed its level. First come the times that ended, the oldest
    end first, then those of the open verdicts, without an end.
    """
    current: dict[Key, tuple[Verdict, float]] = {}
    for transition in health.history:
        verdict = transition.verdict
        before, since = current.get(verdict.key, (None, verdict.raised.wall))
        if transition.change is VerdictChange.CLEARED:
            yield verdict, since, transition
            current.pop(verdict.key, None)
        elif before is None or before.level is not verdict.level:
            if before is not None:
                yield before, since, transition
            current[verdict.key] = (verdict, transition.time.wall)
    for verdict in health.verdicts:
        _, since = current.get(verdict.key, (verdict, verdict.raised.wall))
        yield verdict, since, None


def _of_verdicts(health: Health, gpus: Mapping[str, int], boot_id: str) -> Iterator[Alert]:
    """Yield the alerts of the verdicts that are open, and of those that ended in the last RESOLVED_SECONDS."""
    for verdict, since, end in _stays(health):
        rule = text_of(verdict.check, verdict.level)
        inhibited = (verdict if end is None else end.verdict).inhibited_by is not None
        if rule is None or inhibited or (end is not None and not _is_shown(end, rule, health, boot_id)):
            continue
        now_at = 0.0 if health.evaluated is None else health.evaluated.at
        at = now_at if end is None else end.time.at
        fired = max(0.0, at - verdict.raised.at_or_boot(boot_id)) >= rule.for_seconds
        if not fired and end is not None:
            continue
        alert, coded = _alert(rule, verdict.key, gpus), health.with_code(verdict)
        yield replace(
            alert,
            state=PENDING if not fired else FIRING if end is None else RESOLVED,
            since=verdict.raised.wall,
            firing_since=since + rule.for_seconds if fired else None,
            resolved_at=None if end is None else end.time.wall,
            summary=f"{alert.summary} {coded.code}." if coded.code else alert.summary,
            description=verdict.with_holders(" ".join(dict.fromkeys((verdict.reason, coded.reason)))),
            action=f"{action_sentence(verdict, health, boot_id)} {split_action(alert.action)[1]}".strip(),
        )


def _is_shown(end: VerdictTransition, rule: AlertText, health: Health, boot_id: str) -> bool:
    """Return whether an alert that ended so is shown as resolved: not after long, nor if a maintenance ended it."""
    if health.evaluated is None or end.time.boot_id != boot_id or (end.muted and rule.severity in PAGING):
        return False
    return health.evaluated.at - end.time.at <= RESOLVED_SECONDS


def _of_pending(health: Health, gpus: Mapping[str, int]) -> Iterator[Alert]:
    """Yield a pending alert for each check and device with a warning or failure that has not lasted long enough yet."""
    for key, pending in health.pending.items():
        for level in sorted(pending.lasted, reverse=True):
            rule = text_of(key[0], level)
            if level > max(pending.level, UNKNOWN) and rule is not None:
                wall = 0.0 if health.evaluated is None else health.evaluated.wall
                yield replace(_alert(rule, key, gpus), since=wall - pending.lasted[level])
                break


def _alert(rule: AlertText, key: Key, gpus: Mapping[str, int]) -> Alert:
    check, device = key
    labels = tuple(sorted((("check", check), *labels_of_device(device, gpus))))
    return Alert(
        rule=rule.name,
        severity=rule.severity,
        page=rule.page,
        area=rule.area,
        state=PENDING,
        labels=labels,
        summary=fill(rule.summary, labels),
        description=fill(rule.description, labels),
        action=fill(rule.first_step, labels),
        runbook_url=rule.runbook_url,
        since=0.0,
    )
