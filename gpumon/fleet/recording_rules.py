"""Recording rules of Prometheus: last verdicts of agents that cannot be scraped, and values of nodes and fleets."""

from __future__ import annotations

from collections.abc import Mapping

from gpumon import JOB
from gpumon.health.check_row import DAY

VERDICT = "gpumon_health_check"
MAINTENANCE_END = "gpumon_maintenance_end_timestamp_seconds"
"""Metric that an agent exports once it has read its stored verdicts. While this metric exists, the agent's own
series are used instead of recorded ones.
"""
NODE = "(instance, job, cluster)"
"""Labels that name a node in Prometheus. Two clusters may have a node of one name; `cluster` may be absent."""
KEEP_SECONDS = DAY
"""Seconds after the last scrape for which the last verdicts are kept."""

LAST_SEEN = "instance:gpumon_agent:last_seen_timestamp_seconds"
LAST_MAINTENANCE_END = f"instance:{MAINTENANCE_END}:last"
LAST_VERDICT = f"instance:{VERDICT}:last"
LAST_INFO = f"instance:{VERDICT}_info:last_timestamp_seconds"
"""Time of the last scrape of each info series of a verdict. The series with the newest time is the current one."""

MIN_NODES = 4
"""Minimum number of nodes with the same hardware for which a median is recorded."""
MIN_RATIO = 0.85
"""Share of the fleet's median all-reduce bandwidth below which AllReduceBelowFleet fires."""

BUSBW = "instance:gpumon_probe_allreduce_busbw_bytes_per_second:max"
MEDIAN = "fleet:gpumon_probe_allreduce_busbw_bytes_per_second:median"
RATIO = "instance:gpumon_probe_allreduce_busbw:fleet_ratio"
_HARDWARE = "name, ranks, algorithm, bytes"

_MODELS = "group by (instance, job, cluster, name) (gpumon_gpu_info)"
_ONE_MODEL = f"{_MODELS} and on {NODE} (count by {NODE} ({_MODELS}) == 1)"
_RANKS = f'count_values by {NODE} ("ranks", max by {NODE} (gpumon_probe_allreduce_ranks{{backend="nccl"}}))'
_SIZES = "(instance, job, cluster, algorithm, bytes)"
_LAST_RUN = f'max by {_SIZES} (gpumon_probe_allreduce_busbw_bytes_per_second{{backend="nccl"}})'

GPUS = "instance:gpumon_gpus"
"""Prefix of the recorded series that count a node's GPUs: expected, up, healthy, failed, unknown and busy."""
FAILED = "instance:gpumon_node_health:failed"
FAILURES = "instance:gpumon_failures:count_7d"
FAULT_SECONDS = "instance:gpumon_fault_seconds:sum_7d"
HEALTHY_SECONDS = "instance:gpumon_healthy_seconds:sum_7d"
UTILIZATION = "cluster:gpumon_gpu_utilization:ratio_1h"
_UTILIZATION = "gpumon_gpu_utilization:ratio_5m"
_PER_GPU, _FLEET = "without (gpu, uuid)", "by (cluster, job)"


def _gpus() -> Mapping[str, str]:
    """Return the recording rules that count the GPUs of each node and of each cluster by state.

    For a node that cannot be scraped, the number of expected GPUs is still recorded while the node is a target, and for
    a day after its last scrape. All these GPUs then count as unknown.
    For a node that is no longer a target this ends once its GPU 0 is on another node, because the node was renamed.
    """
    count = f"count {_PER_GPU} (gpumon_gpu_health)"
    node, target = f"on {NODE}", f'up{{job="{JOB}"}}'
    renamed = 'last_over_time(gpumon_gpu_info{gpu="0"}[90m]) and on (uuid) gpumon_gpu_info'
    recorded = f"last_over_time({GPUS}:expected[1h]) and {node} ({LAST_SEEN} unless {node} ({renamed}) or {target})"
    reported = f"sum {_PER_GPU} (gpumon_gpu_health != bool 1)"
    health = "(gpumon_gpu_health == bool 0) + (gpumon_gpu_health == bool 2)"
    states = {
        "expected": f"gpumon_gpus_expected or {count} or {recorded}",
        "up": f"sum {_PER_GPU} (gpumon_gpu_up)",
        "failed": f"sum {_PER_GPU} (gpumon_gpu_health == bool 3)",
        "healthy": f"sum {_PER_GPU} ({health})",
        "unknown": f"clamp_min({GPUS}:expected - ({reported} or 0 * {GPUS}:expected), 0)",
        "busy": f"sum {_PER_GPU} (gpumon_gpu_processes > bool 0)",
    }
    # 0 if no node of the cluster can be scraped: an absent sum would not count in a mean over time.
    return {f"{GPUS}:{state}": expr for state, expr in states.items()} | {
        f"cluster:gpumon_gpus:{state}:sum": f"sum {_FLEET} ({GPUS}:{state} or 0 * {GPUS}:expected)" for state in states
    }


def _utilization() -> Mapping[str, str]:
    busy, observed = (f"rate(gpumon_gpu_{name}_seconds_total[5m])" for name in ("busy", "observed"))
    return {
        f"{level}:{_UTILIZATION}": f"sum {by} ({busy}) / sum {by} ({observed})"
        for level, by in (("instance", _PER_GPU), ("cluster", _FLEET))
    } | {UTILIZATION: f"avg_over_time(cluster:{_UTILIZATION}[1h])"}


RECORDING_RULES: Mapping[str, str] = {
    **_gpus(),
    **_utilization(),
    FAILED: "(gpumon_node_health != 1) == bool 3",  # absent while unknown
    # The last run on all GPUs of a node that has one GPU model, labeled with that model and the number of ranks.
    BUSBW: f"{_LAST_RUN} * on {NODE} group_left (name) ({_ONE_MODEL}) * on {NODE} group_left (ranks) {_RANKS}",
    MEDIAN: f"quantile by ({_HARDWARE}) (0.5, {BUSBW}) and count by ({_HARDWARE}) ({BUSBW}) >= {MIN_NODES}",
    RATIO: f"{BUSBW} / on ({_HARDWARE}) group_left () {MEDIAN}",
}
"""PromQL by the name of the recorded series, in the order of evaluation."""


DAILY_RULES: Mapping[str, str] = {
    "cluster:gpumon_healthy:ratio_1d": "avg_over_time(cluster:gpumon_gpus:healthy:sum[1d]) / "
    "avg_over_time(cluster:gpumon_gpus:expected:sum[1d])",
    # A failure is two changes, or one if it lasts or began earlier.
    FAILURES: f"ceil((changes({FAILED}[7d]) + last_over_time({FAILED}[7d])) / 2)",
    FAULT_SECONDS: f"300 * sum_over_time({FAILED}[7d:5m])",
    HEALTHY_SECONDS: f"300 * count_over_time(({FAILED} == 0)[7d:5m])",
}
"""PromQL by the name of the recorded series, for rules over a day or longer.

Fault seconds are those in which the agent reported its node as failed. Time in which it could not be scraped is not
counted: the value remains as it was.
"""


def ratio_at_best_size(matchers: str = "", *, condition: str = "") -> str:
    """Return PromQL for each node's all-reduce bandwidth as a share of the fleet's median.

    The share is that at the message size with the node's highest bandwidth, because smaller messages measure latency.
    `matchers`: label matchers in braces. `condition`: a comparison, such as " < 0.85".
    """
    best = f"topk by (instance, job, cluster, algorithm) (1, {BUSBW})"
    return f"{RATIO}{matchers}{condition} and on {_SIZES} {best}"


def last_verdict_rules(keep_seconds: float = KEEP_SECONDS) -> Mapping[str, str]:
    """Return PromQL by the name of the recorded series, in the order of evaluation.

    `keep_seconds`: as KEEP_SECONDS. Each rule also reads its own earlier result, up to an hour old, so that a restart
    of Prometheus loses nothing. A verdict that has ended is recorded as 0 once, because last_over_time ignores the end
    of a series.
    """
    verdict = f"last_over_time({LAST_VERDICT}[1h]) > 0"
    while_recorded = f"and on {NODE} {LAST_SEEN}"
    return {
        LAST_SEEN: f"timestamp({MAINTENANCE_END}) or last_over_time({LAST_SEEN}[1h]) > time() - {keep_seconds:.0f}",
        LAST_MAINTENANCE_END: f"{MAINTENANCE_END} or last_over_time({LAST_MAINTENANCE_END}[1h]) {while_recorded}",
        LAST_VERDICT: f"{VERDICT} or {verdict} {while_recorded} unless on {NODE} {MAINTENANCE_END} or 0 * ({verdict})",
        # Last: a scrape that ends between two rules must not raise an alert whose texts are not there yet.
        LAST_INFO: f"timestamp({VERDICT}_info) or last_over_time({LAST_INFO}[1h]) {while_recorded} "
        f"unless on {NODE} {MAINTENANCE_END}",
    }
