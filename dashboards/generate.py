"""Render the dashboards as Grafana's classic JSON, which both file provisioning and grafana.com accept."""

from __future__ import annotations

import json
from collections.abc import Mapping

from dashboards import overview
from dashboards.panels import SOURCE, Json, layout, series

SCHEMA = 39
"""Schema of the oldest Grafana that can show these panels. Later versions migrate it on load."""


def dashboards() -> Mapping[str, str]:
    """Return the JSON of each dashboard by file name."""
    return {f"{overview.UID}.json": json.dumps(_overview(), indent=2, ensure_ascii=False) + "\n"}


def _overview() -> Json:
    return {
        "uid": overview.UID,
        "title": overview.TITLE,
        "description": "GPU nodes that gpumon monitors. Generated: change dashboards/, not this file.",
        "tags": ["gpumon"],
        "schemaVersion": SCHEMA,
        "editable": False,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "fiscalYearStartMonth": 0,
        "links": [_link()],
        "templating": {"list": _variables()},
        "annotations": {"list": [_firing(), _maintenance()]},
        "panels": layout(overview.SECTIONS),
    }


def _variables() -> list[Json]:
    """Return the variables. Bookmarks contain their names. Every agent exports build_info, with or without a driver."""
    chosen = 'instance=~"$instance"'
    return [
        {
            "name": "datasource",
            "label": "Prometheus",
            "type": "datasource",
            "query": "prometheus",
            "refresh": 1,
            "includeAll": False,
            "multi": False,
        },
        _variable("instance", "Node", "label_values(gpumon_build_info, instance)"),
        _variable("gpu", "GPU", f"label_values(gpumon_gpu_info{{{chosen}}}, gpu)"),
        _variable("uuid", "uuid", f'label_values(gpumon_gpu_info{{{chosen},gpu=~"$gpu"}}, uuid)'),
    ]


def _variable(name: str, label: str, query: str) -> Json:
    """Return a variable that selects all values by default, including those that the query does not list."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"gpumon-{name}"},
        "refresh": 2,
        "sort": 7,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _firing() -> Json:
    return {
        "name": "Critical alerts",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": overview.alerts('severity="critical"', 'instance=~"$instance"'),
        "titleFormat": "{{alertname}}",
        "textFormat": "{{instance}} GPU {{gpu}}",
        "tagKeys": "severity",
        "step": "60s",
    }


def _maintenance() -> Json:
    return {
        "name": "Maintenance",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "blue",
        "expr": f"{series('gpumon_maintenance_end_timestamp_seconds')} > time()",
        "titleFormat": "Maintenance",
        "textFormat": "{{instance}}: no alert pages",
        "step": "60s",
    }


def _link() -> Json:
    return {
        "type": "dashboards",
        "title": "gpumon",
        "tags": ["gpumon"],
        "icon": "external link",
        "tooltip": "Other gpumon dashboards, for the same nodes and time range",
        "targetBlank": False,
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
    }
