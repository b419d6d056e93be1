"""The rules: those on readings, and one for each severity of each check, which reads its verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpumon.health.alerts import rules as on_readings
from gpumon.health.alerts.expression import Compare, Reading, where
from gpumon.health.alerts.render import number
from gpumon.health.alerts.rules import MINUTE, RUNBOOK_URL, Rule
from gpumon.health.check import Check
from gpumon.health.table import CHECKS, SUBJECTS
from gpumon.health.terms import UNKNOWN, Level

VERDICT = "gpumon_health_check"
WARNING = "Warning"
"""Ends the name of a check's second alert, where a verdict can be a warning as well as a failure."""
_SAYS = {"critical": "has failed", "warning": "warns", "info": "says, for information only"}


def names(check: Check) -> tuple[str, ...]:
    """Of its alerts, that of the worst level first."""
    return (check.alert, check.alert + WARNING)[: len(check.levels)]


_CANNOT_TELL = Rule(
    name="GpumonCheckUnknown",
    expression=Compare(Reading(VERDICT), "==", int(UNKNOWN)),
    for_=10 * MINUTE,
    severity="warning",
    summary="The check {check} cannot tell.",
    description="For ten minutes the check {check} could not tell how the node, or the GPU, is: that is not well.",
    action="""\
1. `gpumon status` on the node names what the check lacks, and what to do about it: most often a permission, a service
   that does not run, or a GPU that answers with an error.
2. What this node cannot have need not be checked: name the check in `health.disabled_checks`.
""",
)


OF_VERDICTS = frozenset({_CANNOT_TELL.name, *(name for check in CHECKS for name in names(check))})
"""Rules whose alert is a verdict once more."""


def rules(thresholds: Mapping[str, float | None], runbook_url: str = RUNBOOK_URL) -> tuple[Rule, ...]:
    """All rules, with these thresholds in place of the defaults. Raises UnknownThreshold.

    `runbook_url` is a pattern in which `{anchor}` is the rule's section of docs/alerts.md.
    """
    made = (rule for subject, module in SUBJECTS.items() for check in module.CHECKS for rule in _of(check, subject))
    own = on_readings.rules(thresholds, runbook_url)
    return own + on_readings.finished((_CANNOT_TELL, *made), {}, runbook_url)


def _of(check: Check, subject: str) -> Iterator[Rule]:
    """The worst first."""
    ranked = sorted(check.severities, reverse=True)
    for name, (level, severity) in zip(names(check), ranked, strict=True):
        yield _rule(check, level, severity, subject, name=name)


def _rule(check: Check, level: Level, severity: str, subject: str, *, name: str) -> Rule:
    words = check.help.rstrip(".")
    device = "GPU {gpu}: " if check.gpu is not None else "{device}/{port}: " if check.port is not None else ""
    return Rule(
        name=name,
        expression=Compare(Reading(VERDICT, where(check=check.name)), "==", int(level)),
        severity=severity,
        summary=f"{device}{words}.",
        description=f"{words}: the check {{check}} {_SAYS[severity]}. See `gpumon status` on the node for the reason.",
        action=check.steps,
        subject=subject,
        section=check.alert,
        limits=tuple(_limits(check)),
    )


def _limits(check: Check) -> Iterator[str]:
    for one in check.limits:
        yield f"- `{one.name}` ({'unset' if one.default is None else number(one.default)}): {one.meaning}"
