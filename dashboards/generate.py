"""The dashboards as Grafana's classic JSON, which file provisioning and grafana.com share."""

from __future__ import annotations

import json
from collections.abc import Mapping

from dashboards import overview
from dashboards.panels import SOURCE, Json, layout, series

SCHEMA = 39
"""The oldest Grafana that shows these panels has it; later ones migrate it when they load it."""


def dashboards() -> Mapping[str, str]:
    """JSON by file name."""
    return {f"{overview.UID}.json": json.dumps(_overview(), indent=2, ensure_ascii=False) + "\n"}


def _overview() -> Json:
    return {
        "uid": overview.UID,
        "title": overview.TITLE,
        "description": "GPU nodes as gpumon sees them. Generated: change dashboards/, not this file.",
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
    """Their names are in people's bookmarks: they stay. Every agent has build_info, whatever its driver does."""
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
    """All of them at first, those too that the query does not list."""
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
        "tooltip": "Other dashboards of gpumon, for the same nodes and the same time",
        "targetBlank": False,
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
    }
