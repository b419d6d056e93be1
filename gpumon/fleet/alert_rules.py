"""Alert rules of Prometheus: the conditions, in PromQL, of the alerts in `health/alert_texts.py`, and the rule file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

import yaml

from gpumon import JOB
from gpumon.fleet.recording_rules import (
    AGENTS_OUT,
    BRAKING,
    DAILY_RULES,
    KEEP_SECONDS,
    LAST_INFO,
    LAST_SEEN,
    LAST_VERDICT,
    MANY_BRAKING,
    MIN_RATIO,
    NODE,
    OUTAGE_RULES,
    PORTS_OUT,
    RECORDING_RULES,
    SINGLE_DOWN,
    UNLESS_MUTED,
    UTILIZATION,
    last_verdict_rules,
    ratio_at_best_size,
)
from gpumon.health.alert_texts import (
    CHECK_UNKNOWN,
    DOWN_SECONDS,
    LABEL,
    PAGING,
    RUNBOOKS,
    WATCHDOG,
    AlertText,
    alert_texts,
    runbook_url,
)
from gpumon.health.check_row import split_action
from gpumon.health.verdict import UNKNOWN, WARN
from gpumon.model.durations import as_duration

STALE_SECONDS = 120.0
SCALE_OUT, SCALE_IN = 0.85, 0.3
"""Busy shares of GPU time in an hour: GpumonFleetBusy fires above SCALE_OUT, GpumonFleetIdle below SCALE_IN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRule(AlertText):
    expr: str
    """PromQL of the condition, without the clause that mutes it in maintenance."""
    instances: str = ""
    """PromQL for the instances that end the description, with %q for the values of labels of the alert."""
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


_JOB_ON_NODE = NODE.replace(")", ", job_id)")
JOB_MOVED = "gpumon_job_last_moving_timestamp_seconds"
MAX_WAIT_SECONDS = 1200
"""Seconds for which a job may wait for a node that is active: it saves or evaluates, or a rank loops on its CPU."""
_WAITED_FOR = f"gpumon_job_active == 1 and on (job, cluster, job_id) {JOB_MOVED} > time() - {MAX_WAIT_SECONDS}"
_ON_NODES, _ON_ONE_NODE = ',job_id=~"slurm/.*"', ',job_id!~"slurm/.*"'
"""Match the jobs that may run on several nodes, and the others: pods and units of one name are different jobs."""


def _stalled(jobs: str = "") -> str:
    """Return the verdicts on stalled jobs that match, without those of nodes in maintenance."""
    return f'{LAST_VERDICT}{{check="job_stalled"{jobs}}} == {WARN:d} {UNLESS_MUTED}'


_DEVICE_LABELS = {"gpu": ("uuid",), "port": ("device", "port"), "job": ("job_id",), "node": ()}

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
    # One alert for a Slurm job on many nodes. The node whose GPUs stopped first is the first suspect.
    "JobStalled": _Condition(
        f"count by (job, cluster, check, job_id) ({_stalled(_ON_NODES)} unless on (job, cluster, job_id) "
        f"({_WAITED_FOR})) or count by (job, cluster, check, job_id, instance) "
        f"({_stalled(_ON_ONE_NODE)})",
        f'sort({JOB_MOVED}{{cluster=%q,job_id=%q,instance=~"%s.*"}} and on {_JOB_ON_NODE} ({_stalled()}))',
        of_fleet=True,
    ),
    CHECK_UNKNOWN.name: _Condition(
        f"{LAST_VERDICT} == {UNKNOWN:d} and on {NODE} {LAST_SEEN} > time() - {DOWN_SECONDS:g}"
    ),
}


def rules(stale_seconds: float = STALE_SECONDS) -> tuple[AlertRule, ...]:
    """Return all alert rules in the order of the runbook page."""
    stale = _Condition(f"time() - gpumon_snapshot_timestamp_seconds > {stale_seconds:g}")
    conditions = {**_CONDITIONS, "GpumonStale": stale}
    return tuple(_rule(text, conditions.get(text.name)) for text in alert_texts())


def _rule(text: AlertText, condition: _Condition | None) -> AlertRule:
    if condition is None:
        if text.check is None or text.level is None:
            raise ValueError(f"the alert {text.name} has no condition: add a row to _CONDITIONS")
        condition = _Condition(f'{LAST_VERDICT}{{check="{text.check.name}"}} == {text.level:d}')
    return AlertRule(**{each.name: getattr(text, each.name) for each in fields(text)}, **condition._asdict())


HEADER = "# Generated by `gpumon rules render`: change the checks in gpumon/health/, not this file.\n"
KINDS = {
    "prometheus": "",
    "prometheusrule": "monitoring.coreos.com/v1/PrometheusRule",
    "vmrule": "operator.victoriametrics.com/v1beta1/VMRule",
}
"""API version and kind of the Kubernetes object by format; empty for a plain rule file."""
DAILY_SECONDS = 300
"""Seconds between evaluations of the recording rules over a day or longer, because they read many samples."""
MAX_INSTANCES = 20
"""Maximum number of instances that a description lists."""
ANSWERING = f'topk(1, up{{job="{JOB}"}} == 1)'
"""PromQL for one agent that can be scraped. Every agent serves all runbooks."""
HOST = '{{ reReplaceAll ":[0-9]+$" "" $labels.instance }}'


def render(
    rows: Iterable[AlertRule], keep_seconds: float = KEEP_SECONDS, *, kind: str = "prometheus", runbooks: str = ""
) -> str:
    """Return these alert rules and all recording rules as YAML, which Prometheus 2.42 and later accept.

    `keep_seconds`: for how long last verdicts are kept. `kind`: a key of KINDS. `runbooks`: URL below which they are.
    """
    recorded = {**last_verdict_rules(keep_seconds), **OUTAGE_RULES}
    alerts = [*_recording_entries(recorded), *(_entry(rule, runbooks) for rule in rows)]
    groups = [
        {"name": "gpumon_fleet", "rules": _recording_entries(RECORDING_RULES)},
        {"name": "gpumon", "rules": alerts},
        {"name": "gpumon_daily", "interval": f"{DAILY_SECONDS}s", "rules": _recording_entries(DAILY_RULES)},
    ]
    document: dict[str, object] = {"groups": groups}
    if KINDS[kind]:
        api, _, kubernetes_kind = KINDS[kind].rpartition("/")
        metadata = {"name": "gpumon", "labels": {"app.kubernetes.io/name": "gpumon"}}
        document = {"apiVersion": api, "kind": kubernetes_kind, "metadata": metadata, "spec": document}
    return HEADER + yaml.safe_dump(document, sort_keys=False, width=1000)


def _recording_entries(rules: Mapping[str, str]) -> list[Mapping[str, object]]:
    return [{"record": name, "expr": expr} for name, expr in rules.items()]


def _entry(rule: AlertRule, runbooks: str) -> Mapping[str, object]:
    return {
        "alert": rule.name,
        "expr": rule.muted_expr,
        **({"for": as_duration(rule.for_seconds)} if rule.for_seconds else {}),
        "labels": {name: str(value) for name, value in rule.labels.items()},
        "annotations": dict(_annotations(rule, runbooks)),
    }


def _annotations(rule: AlertRule, runbooks: str) -> Iterator[tuple[str, str]]:
    """Yield name and template of each annotation. If there is an info series of the verdict, its texts are used.

    Thus a changed reason or action does not change the labels of the alert, which would make it page again. The alert
    fires even without the info series.
    """
    host, info = "" if rule.of_fleet else f"{HOST}: ", _info_query(rule)
    first = " ".join(rule.steps.split()) if rule.check is None and not runbooks else rule.first_step
    summary, description, action = _prometheus(rule.summary), _prometheus(rule.description), _prometheus(first)
    if info:
        code = f'{info}{{{{ with . | first | label "code" }}}} {{{{ . }}}}.{{{{ end }}}}{{{{ end }}}}'
        summary = summary if rule.of_fleet else f"{summary}{code}"
        description = f'{info}{{{{ . | first | label "reason" }}}}{{{{ else }}}}{description}{{{{ end }}}}'
        own, advice = split_action(action)
        text = '{{ with . | first | label "action_text" }}{{ . }} {{ end }}'
        default = f"{{{{ else }}}}{own}" if own else ""
        action = f"{info}{text}{default}{{{{ end }}}}{advice}"
    if rule.instances:
        values = " ".join(f"$labels.{name}" for name in _FILLED.findall(rule.instances))
        order = "" if rule.instances.startswith("sort(") else " | sortByLabel `instance`"
        named = f"printf `{rule.instances}` {values} | query{order}"
        names = f"{{{{ if lt $i {MAX_INSTANCES} }}}} {{{{ .Labels.instance }}}}"
        more = f"{{{{ else if eq $i {MAX_INSTANCES} }}}} and more{{{{ end }}}}"
        description += f"{{{{ range $i, $agent := {named} }}}}{names}{more}{{{{ end }}}}"
        if rule.of_fleet:  # one instance, which is right after the alert is resolved too
            example = f"{{{{ with {named} }}}}{{{{ . | first | label `instance` }}}}{{{{ end }}}}"
            first = "first on" if order == "" else "such as"
            summary = f"{summary.rstrip('.')}, {first} {example}."
    yield "summary", host + summary
    yield "description", description
    yield "action", action
    if rule.check is not None and rule.check.kind == "gpu":
        board = '{{ with printf "last_over_time(gpumon_gpu_info{uuid=%q}[1d])" $labels.uuid | query }}'
        yield "serial", f'{board}{{{{ . | first | label "serial" }}}}{{{{ end }}}}'
    path = f"{RUNBOOKS}/{rule.section}"
    if runbooks:
        yield "runbook_url", runbook_url(rule.section, runbooks)
    elif rule.of_fleet or rule.expr == SINGLE_DOWN:
        yield (
            "runbook_url",
            f"{{{{ with query `{ANSWERING}` }}}}http://{{{{ . | first | label `instance` }}}}{path}{{{{ end }}}}",
        )
    else:
        yield "runbook_url", f"http://{{{{ $labels.instance }}}}{path}"


_FILLED = re.compile(r"(\w+)=(?:%q|~\"%s)")
"""Matches a label in a query whose value an alert fills in."""


def _info_query(rule: AlertRule) -> str:
    """Return the start of a template that reads the info series of the rule's verdict; "" for a rule without check."""
    if rule.check is None:
        return ""
    labels = ("job", "cluster", "instance", *_DEVICE_LABELS[rule.check.kind])
    # an alert about several nodes has no instance
    forms = {"instance": '=~"%s.*"'} if rule.of_fleet else {}
    matchers = ",".join((f'check="{rule.check.name}"', *(f"{label}{forms.get(label, '=%q')}" for label in labels)))
    values = " ".join(f"$labels.{label}" for label in labels)
    return f"{{{{ with printf `topk(1, {LAST_INFO}{{{matchers}}})` {values} | query }}}}"


def _prometheus(template: str) -> str:
    return LABEL.sub(r"{{ $labels.\1 }}", template)
