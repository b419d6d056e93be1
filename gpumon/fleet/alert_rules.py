"""Alert rules of Prometheus: the conditions, in PromQL, of the alerts in `health/alert_texts.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

from gpumon.fleet.outages import AGENTS_OUT, BRAKING, MANY_BRAKING, PORTS_OUT, SINGLE_DOWN, UNLESS_MUTED
from gpumon.fleet.recording_rules import LAST_SEEN, LAST_VERDICT, MIN_RATIO, NODE, UTILIZATION, ratio_at_best_size
from gpumon.health.alert_texts import CHECK_UNKNOWN, DOWN_SECONDS, PAGING, WATCHDOG, AlertText, alert_texts
from gpumon.health.verdict import UNKNOWN

STALE_SECONDS = 120.0
"""Age of the last complete poll above which GpumonStale fires."""
SCALE_OUT, SCALE_IN = 0.85, 0.3
"""Busy shares of GPU time in an hour: GpumonFleetBusy fires above SCALE_OUT, GpumonFleetIdle below SCALE_IN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRule(AlertText):
    """One alert rule of Prometheus."""

    expr: str
    """PromQL of the condition, without the clause that mutes it in maintenance."""
    instances: str = ""
    """PromQL for the instances that end the description, with %q for the cluster and for the outage's `since`."""
    of_fleet: bool = False
    """Whether the alert is about the fleet. Such an alert has no label `instance`, and only its `expr` can mute it."""

    @property
    def muted_expr(self) -> str:
        """Return `expr` for Prometheus, muted in maintenance if the severity pages and the rule is not `of_fleet`."""
        muted = self.severity in PAGING and not self.of_fleet
        return f"{self.expr} {UNLESS_MUTED}" if muted else self.expr


class _Condition(NamedTuple):
    """The attributes of an AlertRule that its AlertText does not have."""

    expr: str
    instances: str = ""
    of_fleet: bool = False


_CONDITIONS: Mapping[str, _Condition] = {
    "GpumonDown": _Condition(SINGLE_DOWN),
    "GpumonManyDown": _Condition(
        f"count by (job, cluster, since) ({AGENTS_OUT} > 0)",
        f"{AGENTS_OUT}{{cluster=%q,since=%q}} > 0",
        of_fleet=True,
    ),
    "IbManyPortsDown": _Condition(f"{PORTS_OUT} > 0"),
    "GpuManyPowerBrakes": _Condition(MANY_BRAKING, f"{BRAKING}{{cluster=%q}}", of_fleet=True),
    "AllReduceBelowFleet": _Condition(ratio_at_best_size(condition=f" < {MIN_RATIO:g}")),
    "GpumonFleetBusy": _Condition(f"{UTILIZATION} > {SCALE_OUT:g}", of_fleet=True),
    "GpumonFleetIdle": _Condition(f"{UTILIZATION} < {SCALE_IN:g}", of_fleet=True),
    WATCHDOG: _Condition("vector(1)", of_fleet=True),
    # If the agent is down, the operator gets GpumonDown or GpumonManyDown instead.
    CHECK_UNKNOWN.name: _Condition(
        f"{LAST_VERDICT} == {UNKNOWN:d} and on {NODE} {LAST_SEEN} > time() - {DOWN_SECONDS:g}"
    ),
}


def rules(stale_seconds: float = STALE_SECONDS) -> tuple[AlertRule, ...]:
    """Return all alert rules in the order of the runbook page.

    `stale_seconds`: age of the last complete poll above which GpumonStale fires.
    """
    stale = _Condition(f"time() - gpumon_snapshot_timestamp_seconds > {stale_seconds:g}")
    conditions = {**_CONDITIONS, "GpumonStale": stale}
    return tuple(_rule(text, conditions.get(text.name) or _of_check(text)) for text in alert_texts())


def _of_check(text: AlertText) -> _Condition:
    if text.check is None or text.level is None:
        raise ValueError(f"the alert {text.name} has no condition: add a row to _CONDITIONS")
    return _Condition(f'{LAST_VERDICT}{{check="{text.check.name}"}} == {text.level:d}')


def _rule(text: AlertText, condition: _Condition) -> AlertRule:
    return AlertRule(**{each.name: getattr(text, each.name) for each in fields(text)}, **condition._asdict())
