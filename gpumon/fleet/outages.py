"""Prometheus recording rules that find outages: agents, or ports, of many nodes that go down at about the same time."""

from __future__ import annotations

from collections.abc import Mapping

from gpumon import JOB
from gpumon.fleet.recording_rules import KEEP_SECONDS, LAST_MAINTENANCE_END, LAST_SEEN, LAST_VERDICT, NODE
from gpumon.health.alert_texts import DOWN_SECONDS, SINGLE_SECONDS
from gpumon.health.verdict import FAIL

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
