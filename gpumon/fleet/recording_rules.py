"""Recording rules of Prometheus: last verdicts of agents that cannot be scraped, values of nodes and fleets, outages.

In an outage, agents or ports of many nodes go down at about the same time.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpumon import JOB
from gpumon.health.alert_texts import DOWN_SECONDS, SINGLE_SECONDS
from gpumon.health.check_row import DAY
from gpumon.health.verdict import FAIL
from gpumon.model.allocation import IDLE_LEVELS

VERDICT = "gpumon_health_check"
MAINTENANCE_END = "gpumon_maintenance_end_timestamp_seconds"
"""Metric of an agent that has read its stored verdicts. Its own series then replace recorded ones."""
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
_BUSY, _OBSERVED = "rate(gpumon_gpu_busy_seconds_total[5m])", "rate(gpumon_gpu_observed_seconds_total[5m])"
_PER_GPU, _FLEET = "without (gpu, uuid)", "by (cluster, job)"


def _gpus() -> Mapping[str, str]:
    """Return the recording rules that count the GPUs of each node and of each cluster by state.

    While a node cannot be scraped, its expected GPUs count as unknown: as long as it is a target, and for a day after
    its last scrape, unless its GPU 0 is on another node by then, because the node was renamed.
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


RECORDING_RULES: Mapping[str, str] = {
    **_gpus(),
    f"instance:{_UTILIZATION}": f"sum {_PER_GPU} ({_BUSY}) / sum {_PER_GPU} ({_OBSERVED})",
    f"cluster:{_UTILIZATION}": f"sum {_FLEET} ({_BUSY}) / sum {_FLEET} ({_OBSERVED})",
    UTILIZATION: f"avg_over_time(cluster:{_UTILIZATION}[1h])",
    FAILED: "(gpumon_node_health != 1) == bool 3",  # absent while unknown
    # The last run on all GPUs of a node that has one GPU model, labeled with that model and the number of ranks.
    BUSBW: f"{_LAST_RUN} * on {NODE} group_left (name) ({_ONE_MODEL}) * on {NODE} group_left (ranks) {_RANKS}",
    MEDIAN: f"quantile by ({_HARDWARE}) (0.5, {BUSBW}) and count by ({_HARDWARE}) ({BUSBW}) >= {MIN_NODES}",
    RATIO: f"{BUSBW} / on ({_HARDWARE}) group_left () {MEDIAN}",
}
"""PromQL by the name of the recorded series, in the order of evaluation."""


USE_SECONDS = 300
"""Seconds of a window over which the use by owners is recorded."""
OWNER_SHARE = "instance:gpumon_gpu_owner:share_5m"
"""Share of each owner in the time for which a GPU was held. An owner has the labels that `jobs.labels` names."""
HELD, BUSY, IDLE = (f"instance:gpumon_owner_gpus:{use}_5m" for use in ("held", "busy", "idle"))
"""Mean number of a node's GPUs that each owner held, in which its kernels ran, and that were idle, by `level`."""
POWER = "instance:gpumon_owner_power_watts:mean_5m"
"""Mean power of the GPUs that each owner held."""


def _owner_rules() -> Mapping[str, str]:
    """Return the recording rules that divide the use of each GPU among its owners, in the order of evaluation.

    Owners in one window are weighted by their scrapes, so that jobs that end between two evaluations count. Several
    owners at one time share the GPU equally. Time held by an owner that no scrape named has no label of an owner.
    """
    gpu = NODE.replace(")", ", uuid)")
    scrapes = "sum without (gpu, mig_uuid, source) (count_over_time(gpumon_gpu_allocation_info[5m]))"
    energy, held, busy, observed = (
        f"rate(gpumon_gpu_{name}_total[5m])"
        for name in ("energy_joules", "allocated_seconds", "busy_seconds", "observed_seconds")
    )

    def each_owner(expr: str, labels: str = "") -> str:
        return f"{OWNER_SHARE} * on {gpu} group_left ({labels}) {expr}"

    idle = (each_owner(f'rate(gpumon_gpu_idle_seconds_total{{level="{each}"}}[5m])', "level") for each in IDLE_LEVELS)
    recorded = {
        HELD: each_owner(held),
        BUSY: each_owner(f"({busy} < {held} or {held} <= {busy})"),  # an owner is not charged for the time of strangers
        IDLE: " or ".join(idle),
        POWER: each_owner(f"({energy} * {held} / ({observed} > 0))"),
    }
    return {
        OWNER_SHARE: f"{scrapes} / on {gpu} group_left () sum by {gpu} ({scrapes}) "
        f"or on {gpu} group by {gpu} ({held} > 0)",
        **{name: f"sum without (uuid) ({expr})" for name, expr in recorded.items()},
    }


def sum_over(name: str, since: str, matchers: str = "") -> str:
    """Return PromQL for the integral of a series in seconds. `since`: a duration, such as 7d.

    The step of the subquery is that of the windows, and so the interval of evaluation does not matter.
    """
    return f"{USE_SECONDS} * sum_over_time({name}{matchers}[{since}:{USE_SECONDS}s])"


DAILY_RULES: Mapping[str, str] = {
    **_owner_rules(),
    "cluster:gpumon_healthy:ratio_1d": "avg_over_time(cluster:gpumon_gpus:healthy:sum[1d]) / "
    "avg_over_time(cluster:gpumon_gpus:expected:sum[1d])",
    # A failure is two changes, or one if it lasts or began earlier.
    FAILURES: f"ceil((changes({FAILED}[7d]) + last_over_time({FAILED}[7d])) / 2)",
    FAULT_SECONDS: f"300 * sum_over_time({FAILED}[7d:5m])",
    HEALTHY_SECONDS: f"300 * count_over_time(({FAILED} == 0)[7d:5m])",
}
"""PromQL by the name of the recorded series. Time in which a node could not be scraped is no fault, and no use."""


def ratio_at_best_size(matchers: str = "", *, condition: str = "") -> str:
    """Return PromQL for each node's all-reduce bandwidth as a share of the fleet's median.

    The share is that at the message size with the node's highest bandwidth, because smaller messages measure latency.
    `matchers`: label matchers in braces. `condition`: a comparison, such as " < 0.85".
    """
    best = f"topk by (instance, job, cluster, algorithm) (1, {BUSBW})"
    return f"{RATIO}{matchers}{condition} and on {_SIZES} {best}"


def last_verdict_rules(keep_seconds: float = KEEP_SECONDS) -> Mapping[str, str]:
    """Return PromQL by the name of the recorded series, in the order of evaluation.

    Each rule also reads its own earlier result, up to an hour old, so that a restart of Prometheus loses nothing. An
    ended verdict is recorded as 0 once, because last_over_time ignores the end of a series.
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


UNLESS_MUTED = f"unless on {NODE} {LAST_MAINTENANCE_END} > time()"
"""PromQL that ends an expression and drops the nodes in maintenance, for which rules that page are muted."""
DOWN = f'up{{job="{JOB}"}} == 0'
MANY, MANY_SHARE, TOO_MANY = 3, 0.1, 10
"""MANY nodes have a common cause if they are more than MANY_SHARE of the agents, and so have TOO_MANY."""
RECENT_SECONDS = 3600.0
"""An outage begins with agents that answered within this time: those that are down for longer are another matter."""
JOIN_SECONDS = SINGLE_SECONDS - DOWN_SECONDS
"""Seconds within which ports go down that begin an outage. Others can join an outage for this time after its begin."""
AGENTS_OUT = "instance:gpumon_agent_outage:start_timestamp_seconds"
"""Time at which the outage began, for each agent that is down with many others; 0 once when the agent is up again.

The label `since` identifies the outage in its cluster: the hour in which it began, as a Unix time, plus its number
within that hour. Two Prometheus servers see the begin at different seconds, but must send the same labels.
"""
PORTS_OUT = "instance:gpumon_port_outage:start_timestamp_seconds"
"""The same for each port that is down with ports of other nodes."""

_AGENTS = f'count by (job, cluster) (up{{job="{JOB}"}})'
_PORT_VERDICT = f'{LAST_VERDICT}{{check="ib_port_down"}}'
_PORT = NODE.replace(")", ", device, port)")
_BEFORE = f"[1h] offset {JOIN_SECONDS:.0f}s"
BRAKING = "instance:gpumon_power_brake:failed"
_BRAKING_COUNT = "cluster:gpumon_power_brake:nodes"

SINGLE_DOWN = f"{DOWN} unless on {NODE} ({AGENTS_OUT} > 0) - on {NODE} {LAST_SEEN} < {SINGLE_SECONDS:g}"
"""Agents that are down, without those that an outage announces: it began before GpumonDown fired for them."""


def if_many(count: str) -> str:
    """Return PromQL that keeps `count`, a number of nodes by job and cluster, only if so many have a common cause."""
    return f"{count} >= {MANY:d} and {count} > {MANY_SHARE:g} * {_AGENTS} or {count} >= {TOO_MANY:d}"


def _outage(outage: str, labels: str, *, down: str, recent: str, many: str) -> Mapping[str, str]:
    """Return the recording rules that find one kind of outage, in the order of evaluation.

    `outage`: the middle part of their names. `labels`: the labels that identify an agent, or a port. `down`: PromQL for
    the agents that are down, with the value 0. `recent`: PromQL that ends an expression and keeps those of them that
    went down so recently that they can begin or join an outage. `many`: PromQL for the clusters in which an outage
    begins; NEW in it is the number of nodes, by job and cluster, with an agent that is in no outage yet.

    All such agents of the cluster belong to the outage, and so do those that go down in the next JOIN_SECONDS. They
    stay in it until they are up again. Each rule also reads its own earlier result, up to an hour old.
    """
    member, cluster = f"instance:{outage}", f"cluster:{outage}"
    start, cluster_start = f"{member}:start_timestamp_seconds", f"{cluster}:start_timestamp_seconds"
    in_outage, outages = f"last_over_time({start}[1h]) > 0", f"last_over_time({cluster_start}[1h])"
    hour, joinable = "time() - time() % 3600", f"> time() - {JOIN_SECONDS:g}"
    beginning, since = f"{cluster}:beginning", f"{cluster}:new_since"
    earlier = f"count by (job, cluster) ({outages} >= {hour}) and {beginning} or 0 * {beginning}"
    joined = f"topk by (job, cluster) (1, {cluster_start} {joinable})"
    return {
        f"{member}:down": down,
        f"{member}:new": f"{member}:down {recent} unless on {labels} {in_outage}",
        f"{cluster}:new_nodes": f"count by (job, cluster) (group by {NODE} ({member}:new))",
        beginning: f"({many.replace('NEW', f'{cluster}:new_nodes')}) unless on (job, cluster) {outages} {joinable}",
        since: f"{hour} + 1 + ({earlier})",
        cluster_start: f'0 * count_values by (job, cluster) ("since", {since}) + time() or {outages} > time() - 3600',
        start: f"{in_outage} and on {labels} {member}:down "
        f"or {member}:new + on (job, cluster) group_left (since) {joined} or 0 * ({in_outage})",
    }


OUTAGE_RULES: Mapping[str, str] = {
    **_outage(
        "gpumon_agent_outage",
        NODE,
        down=f"{DOWN} {UNLESS_MUTED} and on {NODE} {LAST_SEEN}",
        recent=f"and on {NODE} {LAST_SEEN} > time() - {RECENT_SECONDS:g} < time() - {DOWN_SECONDS:g}",
        many=if_many("NEW"),
    ),
    **_outage(
        "gpumon_port_outage",
        _PORT,
        down=f"0 * ({_PORT_VERDICT} == {FAIL:d} {UNLESS_MUTED})",
        recent=f"unless on {_PORT} last_over_time({_PORT_VERDICT}{_BEFORE}) == {FAIL:d} "
        f"and on {NODE} last_over_time({LAST_SEEN}{_BEFORE}) > time() - {KEEP_SECONDS:.0f}",
        many=f"NEW >= {MANY:d}",
    ),
    BRAKING: f'group by (instance, job, cluster, rack) ({LAST_VERDICT}{{check="gpu_power_brake",job="{JOB}"}} == '
    f"{FAIL:d} {UNLESS_MUTED})",
    _BRAKING_COUNT: f"count by (job, cluster) ({BRAKING})",
}
"""PromQL by the name of the recorded series."""
MANY_BRAKING = (
    f"{if_many(_BRAKING_COUNT)} or "
    f'max by (job, cluster) (count by (job, cluster, rack) ({BRAKING}{{rack!=""}})) >= {MANY:d}'
)
"""Number of nodes with a failed gpu_power_brake, in the cluster or in one rack (target label `rack`), if it is many."""
