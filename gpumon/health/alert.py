"""Alerts that the agent derives from verdicts, in the states of Prometheus: pending, firing, resolved. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gpumon.health.alert_rules import PAGING, AlertRule, fill, rule_of
from gpumon.health.check_row import split_action
from gpumon.health.node_health import Health
from gpumon.health.remediation import action_sentence
from gpumon.health.verdict import UNKNOWN, Key
from gpumon.model.gpu_state import GpuState
from gpumon.model.now import Now
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
    """pending, firing or resolved."""
    labels: Labels
    """Sorted pairs of label and value: `check`; for a GPU also `gpu` and `uuid`, for a port `device` and `port`."""
    summary: str
    description: str
    action: str
    """What to do, as `gpumon status` shows it: the verdict's action, then the first step of the runbook."""
    runbook_url: str
    since: float
    """Time in seconds since the epoch at which the verdict was raised; for a pending alert, at which its finding began.
    """
    firing_since: float | None = None
    """Time at which the alert began to fire, in seconds since the epoch; None while it is pending."""
    resolved_at: float | None = None
    """Time at which the alert was resolved, in seconds since the epoch; None before."""
    resolved_boot: float | None = None
    """`resolved_at` on the boot clock; None before."""

    @property
    def identity(self) -> Labels:
        """Return the sorted labels, as in Prometheus, that distinguish this alert from the other alerts of the node."""
        own = ("alertname", self.rule), ("class", self.area), ("page", self.page), ("severity", self.severity)
        return tuple(sorted((*self.labels, *own)))

    @property
    def key(self) -> Key:
        """Return the key (check, device) of the verdict that caused this alert."""
        labels = dict(self.labels)
        port = "/".join(labels[name] for name in ("device", "port") if name in labels)
        return labels["check"], labels.get("uuid", port)


def update_alerts(
    previous: Iterable[Alert],
    health: Health,
    gpus: Iterable[GpuState],
    now: Now,
    *,
    boot_id: str,
    in_maintenance: bool,
) -> tuple[Alert, ...]:
    """Return the pending, firing and recently resolved alerts after an evaluation of the checks.

    `previous`: the alerts of the last evaluation. In maintenance, alerts of severity critical or warning are not
    active.
    """
    before = {alert.identity: alert for alert in previous}
    names = ((state.index, name) for state in gpus for name in (state.uuid, state.pci_name))
    labels = {name: (("gpu", str(index)), ("uuid", name)) for index, name in names}
    active = {
        alert.identity: alert
        for alert in (*_of_verdicts(health, labels, now, boot_id), *_of_pending(health, labels, now))
        if not (in_maintenance and alert.severity in PAGING)
    }
    current = (_continue(alert, before.get(identity), now) for identity, alert in active.items())
    return (*current, *_resolve(before, active, now))


def _of_verdicts(health: Health, gpus: Mapping[str, Labels], now: Now, boot_id: str) -> Iterator[Alert]:
    for verdict in health.primary:
        rule = rule_of(verdict.check, verdict.level)
        if rule is not None:
            lasted = now.at - (verdict.since_at if verdict.since_boot == boot_id else 0.0)
            state = FIRING if lasted >= rule.for_seconds else PENDING
            alert, coded = _alert(rule, verdict.key, gpus), health.with_code(verdict)
            yield replace(
                alert,
                state=state,
                since=verdict.since,
                summary=f"{alert.summary} {coded.code}." if coded.code else alert.summary,
                description=" ".join(dict.fromkeys((verdict.reason, coded.reason))),
                action=f"{action_sentence(verdict, health, boot_id)} {split_action(rule.first_step)[1]}".strip(),
            )


def _of_pending(health: Health, gpus: Mapping[str, Labels], now: Now) -> Iterator[Alert]:
    """Yield a pending alert for each check and device with a warning or failure that has not lasted long enough yet."""
    for key, pending in health.pending.items():
        for level in sorted(pending.lasted, reverse=True):
            rule = rule_of(key[0], level)
            if level > max(pending.level, UNKNOWN) and rule is not None:
                yield replace(_alert(rule, key, gpus), since=now.wall - pending.lasted[level])
                break


def _alert(rule: AlertRule, key: Key, gpus: Mapping[str, Labels]) -> Alert:
    check, device = key
    labels = tuple(sorted((("check", check), *_device_labels(device, gpus))))
    return Alert(
        rule=rule.name,
        severity=rule.severity,
        page=rule.page,
        area=rule.area,
        state=PENDING,
        labels=labels,
        summary=fill(rule.summary, labels),
        description=fill(rule.description, labels),
        action=rule.first_step,
        runbook_url=rule.runbook_url,
        since=0.0,
    )


def _device_labels(device: str, gpus: Mapping[str, Labels]) -> Labels:
    if device in gpus:
        return gpus[device]
    name, _, port = device.partition("/")
    labels = ("device", name) if port else ("uuid", name), ("port", port)
    return tuple((label, value) for label, value in labels if value)


def _continue(alert: Alert, before: Alert | None, now: Now) -> Alert:
    if alert.state != FIRING:
        return alert
    fired = before is not None and before.state == FIRING
    return replace(alert, firing_since=before.firing_since if before is not None and fired else now.wall)


def _resolve(before: Mapping[Labels, Alert], active: Mapping[Labels, Alert], now: Now) -> Iterator[Alert]:
    """Yield the resolved alerts: those of `before` that fired and have ended.

    `before`: the alerts of the last evaluation. `active`: the alerts that are pending or firing now. An alert is
    yielded again at later evaluations, until RESOLVED_SECONDS after its end.
    """
    for identity, alert in before.items():
        if identity in active or alert.state == PENDING:
            continue
        if alert.state == FIRING:
            yield replace(alert, state=RESOLVED, resolved_at=now.wall, resolved_boot=now.at)
        elif alert.resolved_boot is not None and now.at - alert.resolved_boot <= RESOLVED_SECONDS:
            yield alert
