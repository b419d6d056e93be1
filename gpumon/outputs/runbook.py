"""Runbooks: texts that explain an alert to an operator and list what to do. The alerts of one check share a runbook."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from gpumon.health.alert_texts import AlertText, alert_texts
from gpumon.health.check_row import MINUTE, Check, Paging
from gpumon.health.policy import BOOT_GRACE
from gpumon.model.durations import as_duration
from gpumon.outputs.problems import clearing_conditions

_LABEL = re.compile(r"(?<!\{)\{(\w+)\}")
_TEMPLATE = re.compile(r"\{\{.*?\}\}")
_PAGED = {Paging.NIGHT: "pages at any hour", Paging.DAY: "sends a ticket", Paging.NEVER: "does not page"}
_STEP = re.compile(r"^\d+\. ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Runbook:
    """The runbook of alerts: `name` is the last part of its URL, `subject` the heading above it in the list."""

    name: str
    subject: str
    alerts: tuple[AlertText, ...]

    @property
    def description(self) -> str:
        """Return what is wrong, in Markdown. Placeholders for labels and values of the alert are in italics."""
        rule = self.alerts[0]
        if rule.check is not None:
            return rule.check.help
        return _LABEL.sub(r"*\1*", _TEMPLATE.sub("*value*", rule.description))

    @property
    def facts(self) -> str:
        """Return a line of Markdown: severities, delay until the alert fires, what clears the verdict, thresholds."""
        rule = self.alerts[0]
        if rule.check is None:
            after = f"fires after {as_duration(rule.for_seconds)}" if rule.for_seconds else ""
            return "; ".join(filter(None, (f"Severity {_severity(rule)}", after)))
        return _of_check(rule.check, self.alerts)

    @property
    def steps(self) -> Sequence[str]:
        """Return what to do, as one string for each step, without the numbers of the steps."""
        return [" ".join(step.split()) for step in _STEP.split(self.alerts[0].steps) if step.strip()]


@cache
def runbooks() -> Mapping[str, Runbook]:
    """Return all runbooks by name, in the order of the alert rules."""
    grouped = groupby(alert_texts(), lambda rule: (rule.section, rule.subject))
    return {section: Runbook(section, subject, tuple(sharing)) for (section, subject), sharing in grouped}


def _severity(rule: AlertText) -> str:
    return f"{rule.severity} ({_PAGED[rule.page]})"


def _of_check(check: Check, alerts: tuple[AlertText, ...]) -> str:
    limits = ", ".join(f"`{limit.name}` {limit.default_text}" for limit in check.limits)
    end = _end(check)
    parts = (
        f"`{check.name}`: {', '.join(map(_severity, alerts))}",
        f"fires after {as_duration(check.after)}" if check.after else "",
        f"not in the first {as_duration(BOOT_GRACE)} after a boot" if check.grace else "",
        end and f"cleared by {end}",
        limits and f"threshold{'s' if len(check.limits) > 1 else ''} {limits}",
    )
    return "; ".join(filter(None, parts))


def _end(check: Check) -> str:
    """Return what clears a verdict, such as "passing for 10m"; "" for the default, ok for one minute."""
    if check.latch is None:
        if check.clear_after == MINUTE:
            return ""
        return f"passing for {as_duration(check.clear_after)}" if check.clear_after else "passing once"
    return " or ".join((*clearing_conditions(check), "`gpumon clear`"))
