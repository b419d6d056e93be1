"""Prometheus recording rules that find outages: agents, or ports, of many nodes that go down at about the same time."""

from __future__ import annotations

from collections.abc import Mapping

from gpumon.health.check_row import MINUTE
from gpumon.health.last_verdicts import JOB, KEEP_SECONDS, LAST_MAINTENANCE_END, LAST_SEEN, LAST_VERDICT, NODE
from gpumon.health.policy import BOOT_GRACE
from gpumon.health.verdict import FAIL

UNLESS_MUTED = f"unless on {NODE} {LAST_MAINTENANCE_END} > time()"
"""PromQL that ends an expression and drops the nodes in maintenance, for which rules that page are muted."""
DOWN = f'up{{job="{JOB}"}} == 0'
MANY, MANY_SHARE, TOO_MANY = 3, 0.1, 10
"""MANY nodes have a common cause if they are more than MANY_SHARE of the agents, and so have TOO_MANY."""
RECENT_SECONDS = 3600.0
"""An outage begins with agents that answered within this time: those that are down for longer are another matter."""
DOWN_SECONDS = BOOT_GRACE
"""Seconds for which agents must be down before they can be an outage: a reboot is no fault."""
JOIN_SECONDS = 2 * MINUTE
"""Seconds within which ports go down that begin an outage. Others can join an outage for this time after its begin."""
SINGLE_SECONDS = DOWN_SECONDS + JOIN_SECONDS
"""Seconds after which an agent that is down has an alert of its own: it may be the first agent of an outage."""
AGENTS_OUT = "instance:gpumon_agent_outage:start_timestamp_seconds"
"""Time at which the outage began, for each agent that is down with many others; 0 once when the agent is up again.

The second is whole, plus 1/1024 for the first outage of the cluster, 2/1024 for the next one within an hour, and so on.
"""
PORTS_OUT = "instance:gpumon_port_outage:start_timestamp_seconds"
"""The same for each port that is down with ports of other nodes."""

_AGENTS_DOWN = f"{DOWN} {UNLESS_MUTED} and on {NODE} {LAST_SEEN}"
_AGENTS = f'count by (job, cluster) (up{{job="{JOB}"}})'
_PORT_VERDICT = f'{LAST_VERDICT}{{check="ib_port_down"}}'
_PORT = NODE.replace(")", ", device, port)")
_BEFORE = f"[1h] offset {JOIN_SECONDS:.0f}s"
_SINCE_BEFORE = f"last_over_time({_PORT_VERDICT}{_BEFORE}) == {FAIL:d}"
_SEEN_BEFORE = f"last_over_time({LAST_SEEN}{_BEFORE}) > time() - {KEEP_SECONDS:.0f}"
_PORTS_DOWN = f"{_PORT_VERDICT} == {FAIL:d} {UNLESS_MUTED}"

_BRAKING = f'({LAST_VERDICT}{{{{check="gpu_power_brake",job="{JOB}"{{}}}}}} == {FAIL:d} {UNLESS_MUTED})'
BRAKING_NODES = f"group by {NODE} {_BRAKING}"
"""Nodes with a failed gpu_power_brake. The braces take further label matchers."""
BRAKING_COUNT = f"count by (job, cluster) ({BRAKING_NODES})".format("")
_BRAKING_OF_RACK = f"group by (instance, job, cluster, rack) {_BRAKING}".format(',rack!=""')
BRAKING_IN_RACK = f"max by (job, cluster) (count by (job, cluster, rack) ({_BRAKING_OF_RACK})) >= {MANY:d}"
"""Number of nodes with a failed gpu_power_brake in the rack (target label `rack`) that has most, if they are many."""

SINGLE_DOWN = f"{DOWN} unless on {NODE} ({AGENTS_OUT} > 0) - on {NODE} {LAST_SEEN} < {SINGLE_SECONDS:g}"
"""Agents that are down, without those that an outage announces: it began before GpumonDown fired for them."""


def if_many(count: str) -> str:
    """Return PromQL that keeps `count`, a number of nodes by job and cluster, only if so many have a common cause."""
    return f"{count} >= {MANY:d} and {count} > {MANY_SHARE:g} * {_AGENTS} or {count} >= {TOO_MANY:d}"


def since(start: str) -> str:
    """Return PromQL for the label `since` of an outage; 0 if the outage is over. `start`: PromQL for its begin.

    The label is the hour in which the outage began, plus the number of the outage: two Prometheus servers see the begin
    at different seconds, but must send the same labels.
    """
    return f"{start} - {start} % 3600 + {start} % 1 * 1024"


def _outage(name: str, down: str, new: str, many: str, labels: str) -> str:
    """Return the PromQL of the series `name`: for each agent in an outage, the time at which the outage began.

    The same holds for ports. `down`, `new`: PromQL for the agents that are down, and for those that went down so
    recently that they can begin or join an outage. `many`: PromQL that returns the clusters in which an outage begins;
    COUNT in it is the number of nodes, by job and cluster, with an agent that is `new` and in no outage yet. `labels`:
    label list, such as NODE, that identifies an agent.

    All such agents of the cluster belong to the outage, and so do those that are `new` in the next JOIN_SECONDS. When
    an agent is no longer `down`, its value is 0 once, and then its series ends.
    """
    earlier = f"(last_over_time({name}[1h]) > 0)"
    alone = f"({new} unless on {labels} {earlier})"
    begun = f"max by (job, cluster) ({earlier} > time() - {JOIN_SECONDS:g})"
    number = f"max by (job, cluster) (max_over_time({name}[1h]) % 1 or 0 * {alone}) + 1 / 1024"
    enough = many.replace("COUNT", f"count by (job, cluster) (group by {NODE} {alone})")
    return (
        f"{earlier} and on {labels} ({down}) or 0 * {alone} + on (job, cluster) group_left () {begun} "
        f"or 0 * {alone} + on (job, cluster) group_left () ({number} + time() - time() % 1) "
        f"and on (job, cluster) ({enough}) or 0 * {earlier}"
    )


OUTAGE_RULES: Mapping[str, str] = {
    AGENTS_OUT: _outage(
        AGENTS_OUT,
        down=_AGENTS_DOWN,
        new=f"{_AGENTS_DOWN} > time() - {RECENT_SECONDS:g} < time() - {DOWN_SECONDS:g}",
        many=if_many("COUNT"),
        labels=NODE,
    ),
    PORTS_OUT: _outage(
        PORTS_OUT,
        down=_PORTS_DOWN,
        new=f"{_PORTS_DOWN} unless on {_PORT} {_SINCE_BEFORE} and on {NODE} {_SEEN_BEFORE}",
        many=f"COUNT >= {MANY:d}",
        labels=_PORT,
    ),
}
"""PromQL by the name of the recorded series. An agent or port stays in its outage until it answers or is up again."""
