"""PromQL of the dashboards, built from the metric tables: a query for an unknown metric raises an error."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from gpumon import JOB
from gpumon.fleet.recording_rules import DAILY_RULES, LAST_SEEN, RECORDING_RULES
from gpumon.health.alert_texts import WATCHDOG
from gpumon.outputs.metric_catalogue import catalogue

ON_NODE = ('cluster=~"$cluster"', 'instance=~"$instance"')
ON_GPU = ('gpu=~"$gpu"', 'uuid=~"$uuid"')
ON_GPU_OR_NODE = ('gpu=~"$gpu|"', 'uuid=~"$uuid|"')
VERDICTS = frozenset({"gpumon_health_check", "gpumon_health_check_info"})
"""Metrics about a GPU, or with empty labels about its node, which matters to the GPU too."""
OTHER_METRICS = frozenset({"up", "ALERTS", "ALERTS_FOR_STATE", LAST_SEEN, *RECORDING_RULES, *DAILY_RULES})
"""Series of Prometheus itself and of the recording rules."""
PRICE = "2.50"
"""Default of the variable `price`, in the currency of the reader."""
MAX_SERIES = 20
"""Maximum number of series in one graph."""
EACH_NODE = "cluster, instance"
EACH_GPU = f"{EACH_NODE}, gpu, uuid"
"""Labels that identify a node or a GPU. Nodes of two clusters may have one name. The label `cluster` may be absent."""
_OWN_ALERTS = f'alertname!="{WATCHDOG}", class!="", page!="", cluster=~"$cluster|", instance=~"$instance|"'
"""Matchers of gpumon's alerts: all of them, and no others, have the labels `class` and `page`."""


@cache
def labels() -> Mapping[str, tuple[str, ...]]:
    """Return the labels of each metric of the agent by its name."""
    return {entry.name: entry.labels for entry in catalogue()}


def series(metric: str, *matchers: str) -> str:
    """Return the series of a metric on the selected nodes and GPUs. Raise KeyError for an unknown metric."""
    has_gpu = metric not in OTHER_METRICS and "uuid" in labels()[metric]
    on_gpu = ON_GPU_OR_NODE if metric in VERDICTS else ON_GPU if has_gpu else ()
    return f"{metric}{{{', '.join((*ON_NODE, *on_gpu, *matchers))}}}"


def alerts(*matchers: str, metric: str = "ALERTS") -> str:
    """Return gpumon's alerts in Prometheus of the selected nodes and of the fleet, without the watchdog."""
    return f"{metric}{{{', '.join((_OWN_ALERTS, *matchers))}}}"


FIRING = 'alertstate="firing"'
RULES_WORK = f'ALERTS{{alertname="{WATCHDOG}"}}'
"""Exists while Prometheus evaluates gpumon's rules."""
TARGETS = series("up", f'job="{JOB}"')
"""One series for each agent that Prometheus scrapes: 1 if it answers."""


def count(expression: str, among: str) -> str:
    """Return PromQL that counts series. It is 0 only if `among` has series, else absent."""
    return f"count({expression}) or 0 * count({among})"


def stated(expression: str, label: str, text: str, known: str) -> str:
    """Return the expression; if it has no result, one with this text in a label, and NaN, which is shown as no number.

    Without series of `known`, which show that the answer is known, there is no result.
    """
    return f'{expression} or on () label_replace(NaN * group({known}), "{label}", "{text}", "", "")'


def number_or_no_answer(expression: str, known: str) -> str:
    """Return a number; if there is none and `known` has series, NaN, which is shown as n/a."""
    return f"{expression} or on () NaN * group({known})"


def number_or_zero(expression: str, known: str) -> str:
    """Return a number, or 0 if there is none and `known` has series."""
    return f"{expression} or on () 0 * group({known})"


def by_name(expression: str) -> str:
    """Return results by node with `cluster/` before its name if another cluster has a node of that name."""
    nodes = f"group by ({EACH_NODE}) ({TARGETS})"
    twins = f"on (instance) (count by (instance) ({nodes}) > 1)"
    named = f'label_join(({expression}) and {twins}, "instance", "/", "cluster", "instance")'
    return f"({expression}) unless {twins} or {named}"


def biggest(by: str, expression: str) -> str:
    """Return the maximum by these labels."""
    return f"max by ({by}) ({expression})"


RANGE = "$__range"
"""Duration of the time range of the dashboard."""
RATE_INTERVAL = "$__rate_interval"
MIN_STEP = 45
"""Minimum seconds between two points of a graph of a rate, so that its interval covers three readings of a counter that
is read every 15 s, also if Prometheus scrapes more often.
"""


def increase(metric: str, by: str, *matchers: str) -> str:
    """Return the increase between two points of a graph, only where there is one."""
    return f"sum by ({by}) (increase({series(metric, *matchers)}[{RATE_INTERVAL}])) > 0"


def rate(metric: str, *matchers: str) -> str:
    """Return the increase per second."""
    return f"rate({series(metric, *matchers)}[{RATE_INTERVAL}])"


def share_of_time(metric: str) -> str:
    """Return the share of the observed time in which a GPU was in the state that this counter of seconds measures.

    When a GPU stops answering, its counter ends before the observed time, and their ratio may exceed 1.
    """
    return f"clamp_max({rate(metric)} / {rate('gpumon_gpu_observed_seconds_total')}, 1)"


KERNEL_LOG = f"{series('gpumon_kernel_log_up')} == 1"
"""Exists for each node whose Xids are known."""
XID_SECONDS = 300
"""Seconds for which a timeline shows an Xid after it occurred."""


def recent_xids(by: str) -> str:
    """Return 1 for each Xid that occurred in the last XID_SECONDS. increase() would miss the first one of a code."""
    recent = f"{series('gpumon_gpu_xid_last_timestamp_seconds')} > time() - {XID_SECONDS}"
    return f"0 * {biggest(by, recent)} + 1"
