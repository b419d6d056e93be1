"""The files of all dashboards."""

from __future__ import annotations

from collections.abc import Mapping

from dashboards import agents, fleet, gpu, idle_cost, job, links, node
from dashboards.grafana import render

DASHBOARDS = (
    fleet.DASHBOARD,
    node.DASHBOARD,
    gpu.DASHBOARD,
    links.DASHBOARD,
    job.DASHBOARD,
    idle_cost.DASHBOARD,
    agents.DASHBOARD,
)


def dashboards() -> Mapping[str, str]:
    """Return the JSON of each dashboard by file name."""
    return {f"{dashboard.uid}.json": render(dashboard) for dashboard in DASHBOARDS}
