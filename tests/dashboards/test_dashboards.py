"""The dashboards as files: valid for Grafana, questions as titles, queries of metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from each_case import each_case

from dashboards.generate import DASHBOARDS, dashboards
from dashboards.panels import Dashboard, Panel
from dashboards.promql import ON_GPU, ON_GPU_OR_NODE, ON_NODE, OTHER_METRICS, VERDICTS, labels
from gpumon.health.alert_texts import WATCHDOG

FILES = Path(__file__).parents[2] / "dashboards"
LABEL = re.compile(r"\{\{(\w+)\}\}")
PANELS = [
    pytest.param(panel, id=f"{dashboard.uid}: {panel.title}") for dashboard in DASHBOARDS for panel in dashboard.panels
]
ON_ALERTS = ('cluster=~"$cluster|"', 'instance=~"$instance|"')
"""An alert about the fleet has no instance, and may have no cluster."""
_TOTAL = "The current value of a ratio whose integral over time is shown."
_OF_LINKS = "The sum of the counters of single links, which are shown."
_FREE = "The size without what is used and reserved, which are shown."
NOT_ON_THE_GPU_DASHBOARD = {
    **{f"gpumon_gpu_{name}_ratio": _TOTAL for name in ("sm_active", "tensor_active", "dram_active", "utilization")},
    "gpumon_gpu_nvlink_errors_total": _OF_LINKS,
    "gpumon_gpu_nvlink_recoveries_total": _OF_LINKS,
    "gpumon_gpu_memory_free_bytes": _FREE,
    "gpumon_mig_memory_free_bytes": _FREE,
    "gpumon_gpu_xid_critical_errors_total": "The sum of some codes, whose counts are shown.",
    "gpumon_mig_info": "Its labels are on the other metrics of MIG instances.",
    **dict.fromkeys(
        ("gpumon_gpu_repair_pending", "gpumon_gpu_memory_unrepairable", "gpumon_gpu_bank_groups_without_spares"),
        "Details; the verdicts about them are shown.",
    ),
    "gpumon_gpu_vgpu_licensed": "For the names of dcgm-exporter: only guests with a vGPU need a license.",
}
"""Reason by metric with a uuid that no query of the dashboards of one GPU and of owners has."""
SAME = {("How near is the thermal limit?", "How far is it from slowing down?")}
"""Panels with the same query: the first is about all GPUs of a node, the second about one."""
SERVERS = {"alertmanager_notifications_total", "alertmanager_notifications_failed_total"}
SERVERS |= {"prometheus_notifications_errors_total"}


def test_files_are_current() -> None:
    assert {file.name: file.read_text(encoding="utf-8") for file in FILES.glob("*.json")} == dict(dashboards())


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft7Validator:
    """Grafana's schema of a dashboard, from grafana-foundation-sdk (Apache-2.0), jsonschema/dashboard.jsonschema.json.

    It writes "any value" as an object, so these parts are opened.
    """
    text = (Path(__file__).parent / "schema" / "dashboard.json").read_text(encoding="utf-8")
    return jsonschema.Draft7Validator(_without_closed_objects(json.loads(text)))


def _without_closed_objects(part: Any) -> Any:
    if isinstance(part, dict):
        anything = part.get("type") == "object" and part.get("additionalProperties") == {} and "properties" not in part
        return {} if anything else {name: _without_closed_objects(value) for name, value in part.items()}
    return [_without_closed_objects(value) for value in part] if isinstance(part, list) else part


@each_case("dashboard", DASHBOARDS)
def test_a_dashboard_is_valid_for_grafana(dashboard: Dashboard, schema: jsonschema.Draft7Validator) -> None:
    """The JSON agrees with the schema, and the schema refuses a panel with an unknown property."""
    written = json.loads(dashboards()[f"{dashboard.uid}.json"])
    schema.validate(written)
    written["panels"][1]["questions"] = []
    assert not schema.is_valid(written)


@each_case("dashboard", DASHBOARDS)
def test_panels_fill_the_grid_without_overlap(dashboard: Dashboard) -> None:
    """Ids are unique, and no panel overlaps another or exceeds the 24 columns."""
    panels = json.loads(dashboards()[f"{dashboard.uid}.json"])["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        x, y, w, h = (panel["gridPos"][side] for side in "xywh")
        cells = {(column, line) for column in range(x, x + w) for line in range(y, y + h)}
        assert x + w <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


@each_case("dashboard", DASHBOARDS)
def test_titles_are_questions_that_differ(dashboard: Dashboard) -> None:
    titles = [panel.title for panel in dashboard.panels] + [section.title for section in dashboard.sections]
    assert all(title.endswith("?") for title in titles)
    assert len(set(titles)) == len(titles)


def test_no_two_panels_ask_the_same() -> None:
    asked: dict[tuple[str, ...], str] = {}
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            queries = tuple(" ".join(query.expr.split()) for query in panel.queries)
            other = asked.setdefault(queries, panel.title)
            assert panel.title == other or (other, panel.title) in SAME, (other, panel.title)


@each_case("panel", PANELS)
def test_a_panel_is_described(panel: Panel) -> None:
    """It has a description and a unit for each value."""
    assert panel.description.endswith(".")
    assert panel.unit
    assert all(column.unit for column in panel.columns)


@each_case("panel", PANELS)
def test_queries_select_metrics_that_exist_by_the_variables(panel: Panel) -> None:
    """Every selector names a metric of the tables, of a recording rule or of Prometheus, and uses the variables."""
    for query in panel.queries:
        selectors = re.findall(r"\b([\w:]+)\{(.*?)\}", query.expr)
        assert selectors or any(name in query.expr for name in SERVERS)
        for name, matchers in selectors:
            if name in SERVERS:
                continue
            own = name not in OTHER_METRICS
            assert name in labels() if own else name in OTHER_METRICS
            on_gpu = ON_GPU_OR_NODE if name in VERDICTS else ON_GPU if own and "uuid" in labels()[name] else ()
            required = (
                () if f'alertname="{WATCHDOG}"' in matchers else ON_ALERTS if "ALERTS" in name else (*ON_NODE, *on_gpu)
            )
            assert all(matcher in matchers for matcher in required), name


@each_case("panel", PANELS)
def test_counters_are_shown_as_rates(panel: Panel) -> None:
    """Absolute values are shown only for counters that survive restarts, or since the driver was loaded."""
    lasting = {"gpumon_gpu_xid_errors_total", "gpumon_gpu_rows_remapped_total", "gpumon_gpu_ecc_errors_total"}
    lasting |= {"gpumon_nvswitch_errors_total", "gpumon_gpu_ecc_errors_lifetime_total"}
    for query in panel.queries:
        raw = re.findall(r"(?<!rate\()(?<!increase\()(?<!group\()\b(\w+_total)\{", query.expr)
        assert set(raw) <= lasting


@each_case("panel", PANELS)
def test_a_gpu_has_its_node(panel: Panel) -> None:
    """Every node has a GPU 0: a legend or a table with a GPU names its node, unless the dashboard is about one node."""
    dashboard = next(dashboard for dashboard in DASHBOARDS if panel in dashboard.panels)
    for query in panel.queries:
        named = LABEL.findall(query.legend)
        assert dashboard.one_node or "gpu" not in named or "instance" in named
    sources = {column.source for column in panel.columns}
    assert dashboard.one_node or "gpu" not in sources or "instance" in sources


def test_every_metric_of_a_gpu_is_on_its_dashboard() -> None:
    """Metrics about its owners are on the dashboard of owners."""
    boards = [dashboard for dashboard in DASHBOARDS if dashboard.uid in {"gpumon-gpu", "gpumon-idle"}]
    panels = [panel for board in boards for panel in board.panels]
    shown = {name for panel in panels for query in panel.queries for name in re.findall(r"\w+", query.expr)}
    metrics = {name for name, names in labels().items() if "uuid" in names}
    assert metrics - shown == set(NOT_ON_THE_GPU_DASHBOARD)
    assert all(NOT_ON_THE_GPU_DASHBOARD.values())


def test_links_name_the_cluster_the_node_and_the_gpu() -> None:
    """Each line or cell about a GPU opens its dashboard, with its uuid if the data have it."""
    for dashboard in DASHBOARDS:
        for panel in json.loads(dashboards()[f"{dashboard.uid}.json"])["panels"]:
            gpu_lines = any("{{gpu}}" in target.get("legendFormat", "") for target in panel.get("targets", ()))
            urls = [link["url"] for link in panel.get("fieldConfig", {}).get("defaults", {}).get("links", ())]
            if gpu_lines:
                assert any("/d/gpumon-gpu?" in url and "var-uuid=${__field.labels.uuid}" in url for url in urls), panel
            cells = [
                link["url"]
                for override in panel.get("fieldConfig", {}).get("overrides", ())
                for option in override["properties"]
                if option["id"] == "links"
                for link in option["value"]
            ]
            for url in [*urls, *cells]:
                assert "var-instance=" in url
                assert ("${cluster:queryparam}" in url) != ("var-cluster=" in url)
                about_job = "/d/gpumon-job?" in url
                assert about_job == ("var-job_id=" in url) == ("var-instance=$__all" in url)
                assert not dashboard.one_node or about_job or "var-instance=${instance}" in url


def test_names_in_bookmarks_do_not_change() -> None:
    """Bookmarks and links of others contain the uid and the names of variables."""
    assert [dashboard.uid for dashboard in DASHBOARDS] == [
        "gpumon-fleet",
        "gpumon-node",
        "gpumon-gpu",
        "gpumon-links",
        "gpumon-job",
        "gpumon-idle",
        "gpumon-agents",
    ]
    for file, text in dashboards().items():
        names = [variable["name"] for variable in json.loads(text)["templating"]["list"]]
        own = {"gpumon-idle.json": ["price"], "gpumon-job.json": ["job_id"]}.get(file, [])
        assert names == ["datasource", "cluster", "instance", "gpu", "uuid", *own]
