"""The dashboards: valid files, and queries that a real Prometheus answers for a real agent."""

from __future__ import annotations

import contextlib
import json
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from agents import Agent, eventually, free_port, running

from dashboards import overview
from dashboards.generate import dashboards
from dashboards.panels import GPU, NODE, WIDTH, Panel
from gpumon.health.fleet_rules import RECORDING_RULES
from gpumon.outputs.metric_catalogue import catalogue

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "dashboards").glob("*.json"))
PANELS = [panel for section in overview.SECTIONS for panel in section.panels]
assert PANELS, "tests that loop over no panel prove nothing"

LABEL = re.compile(r"\{\{(\w+)\}\}")
VARIABLES = {"$instance": ".*", "$gpu": ".*", "$uuid": ".*", "$__rate_interval": "1m"}
WINDOW, STEP = 30, 3

HEALTHY: Mapping[str, Any] = {"idle": True}
UNHEALTHY: Mapping[str, Any] = {
    "idle": True,
    "gpus": {
        0: {"xids": [48], "fabric": {"status": 999}},
        1: {"remap": {"uncorrectable": 1, "pending": 1, "failed": 1}},
        2: {"set": {"pcie_width": 8}, "nvlinks": {3: {"state": "down"}}},
        3: {"lost": True},
        4: {"set": {"temperature": 88}},
        5: {"hang": ["nvmlDeviceGetTemperature*"]},
        6: {"fail": {"nvmlDeviceGetUtilizationRates": "UNKNOWN"}, "fabric": {"state": 2}},
        7: {"mig": ["3g.40gb", "3g.40gb"]},
    },
    "ports": {"mlx5_3": {"state": "down"}},
}
"""A fault for every panel that shows problems only."""

Series = list[dict[str, Any]]


class Prometheus:
    """A Prometheus with the shipped scrape jobs, every second on one agent, and gpumon's rules."""

    def __init__(self, folder: Path, target: int) -> None:
        self.port, self.folder = free_port(), folder
        shipped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
        target_of_all = {"static_configs": [{"targets": [f"127.0.0.1:{target}"]}], "scrape_interval": "1s"}
        configuration = {
            "global": {"scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(ROOT / "alert_rules" / "gpumon.yml")],
            "scrape_configs": [job | target_of_all for job in shipped["scrape_configs"]],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
        self.arguments = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of its API. Raises HTTPError for an invalid query."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]

    def shown(self, panel: Panel, query: str) -> Series:
        """Return the series that Grafana would draw with every node and GPU selected."""
        now = time.time()
        if panel.instant:
            return list(self.ask("query", query=_filled(query))["result"])
        span = {"start": f"{now - WINDOW}", "end": f"{now}", "step": f"{STEP}"}
        return list(self.ask("query_range", query=_filled(query), **span)["result"])


def _filled(query: str) -> str:
    for variable, value in VARIABLES.items():
        query = query.replace(variable, value)
    return query


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    one = Agent(tmp_path_factory.mktemp("agent"))
    one.simulate(HEALTHY)
    one.start()
    yield one
    one.stop()


@pytest.fixture(scope="module")
def prometheus(agent: Agent, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    server = Prometheus(tmp_path_factory.mktemp("prometheus"), agent.port)
    with running(server.arguments, server.folder / "log"):
        # The first probe has ended, and the counters have enough samples for rates.
        eventually(lambda: server.ask("query", query="gpumon_probe_allreduce_runs_total{outcome='ok'} == 1")["result"])
        eventually(lambda: server.ask("query", query="count_over_time(gpumon_simulated[1m]) >= 5")["result"])
        yield server


COMPARED = {"Compared with the host's median", "Compared with published figures", "Compared with the fleet"}
"""Panels without data here: they need several runs, GPUs or several nodes."""


@pytest.mark.slow
def test_every_panel_of_a_healthy_node_has_data(prometheus: Prometheus) -> None:
    """Every query is valid, and panels have data with the labels of legend and columns unless no data is normal."""
    for panel in PANELS:
        for query in panel.queries:
            found = prometheus.shown(panel, query)
            assert found or panel.quiet, f"{panel.title}: nothing for {query}"
            for series in found:
                assert set(LABEL.findall(panel.legend)) <= set(series["metric"]), panel.title
        if not panel.quiet and panel.columns:
            labels = {
                label for query in panel.queries for one in prometheus.shown(panel, query) for label in one["metric"]
            }
            assert {name for name in panel.columns if not name.startswith("Value #")} <= labels, panel.title


@pytest.mark.slow
def test_stats_of_a_healthy_node_show_zero_problems(prometheus: Prometheus) -> None:
    """Eight GPUs are expected and up, and counts of problems are 0, not absent."""
    values = {panel.title: _number(prometheus, panel) for panel in PANELS if panel.kind == "stat"}
    assert values["GPUs expected"] == values["GPUs up"] == 8
    assert values["GPUs not up"] == values["Agents down"] == values["Alerts firing"] == values["Nodes that fail"] == 0
    assert values["Agents"] == values["Simulated nodes"] == 1


def _number(prometheus: Prometheus, panel: Panel) -> float:
    [series] = prometheus.shown(panel, panel.queries[0])
    return float(series["value"][1])


@pytest.mark.slow
def test_variables_have_values(prometheus: Prometheus) -> None:
    """The variables offer the nodes, GPUs and uuids that the agent exports."""
    variables = _dashboard()["templating"]["list"][1:]
    assert len(variables) == 3
    for variable in variables:
        asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
        assert asked is not None
        offered = prometheus.ask(f"label/{asked[2]}/values", **{"match[]": _filled(asked[1])})
        assert len(offered) == (1 if variable["name"] == "instance" else 8), variable["name"]


@pytest.mark.slow
def test_every_fault_is_shown(agent: Agent, prometheus: Prometheus) -> None:
    """On an unhealthy node each panel that shows problems only has data, and so has the annotation."""
    agent.simulate(UNHEALTHY)
    quiet = [panel for panel in PANELS if panel.quiet and panel.title not in COMPARED]
    waiting = [(panel, query) for panel in quiet for query in panel.queries]
    assert waiting

    def all_shown() -> bool:
        waiting[:] = [(panel, query) for panel, query in waiting if not prometheus.shown(panel, query)]
        return not waiting

    with contextlib.suppress(AssertionError):  # the next line lists the panels
        eventually(all_shown, every=1)
    assert not waiting
    firing, _ = _dashboard()["annotations"]["list"]
    assert prometheus.ask("query", query=_filled(firing["expr"]))["result"]


def _dashboard() -> Any:
    return json.loads((ROOT / "dashboards" / f"{overview.UID}.json").read_text(encoding="utf-8"))


def test_files_are_current() -> None:
    """The committed JSON is the output of `make generate`."""
    assert {path.name: path.read_text(encoding="utf-8") for path in FILES} == dict(dashboards())


def test_queries_name_metrics_of_the_tables() -> None:
    """Every metric in a query is in the catalogue, recorded by a rule, or from Prometheus itself."""
    known = {entry.name for entry in catalogue()} | set(RECORDING_RULES)
    for panel in PANELS:
        for query in panel.queries:
            named = set(re.findall(r"\b([\w:]+)\{", query))
            assert named
            assert named <= known | {"up", "ALERTS"}, panel.title


def test_queries_select_by_the_variables() -> None:
    """Every selector uses the variables: the node always, the GPU if the metric has one."""
    labels = {entry.name: entry.labels for entry in catalogue()}
    for panel in PANELS:
        for query in panel.queries:
            for name, matchers in re.findall(r"\b(\w+)\{(.*?)\}", query):
                chosen = GPU if "uuid" in labels.get(name, ()) else NODE
                assert all(matcher in matchers for matcher in chosen), f"{panel.title}: {name}"


def test_counters_are_shown_as_rates() -> None:
    """Absolute values are shown only for counters that survive restarts, because others depend on the agent's start."""
    for panel in PANELS:
        assert panel.queries
        for query in panel.queries:
            raw = re.findall(r"(?<!rate\()(?<!increase\()\b(\w+_total)\{", query)
            assert set(raw) <= {"gpumon_gpu_xid_errors_total", "gpumon_gpu_rows_remapped_total"}, panel.title


def test_legends_with_a_gpu_name_the_node() -> None:
    """A legend that names a GPU names its node, because every node has a GPU 0."""
    for panel in PANELS:
        named = LABEL.findall(panel.legend)
        assert "gpu" not in named or "instance" in named, panel.title


def test_panels_fit_the_grid() -> None:
    """Ids are unique, and no panel overlaps another or exceeds the grid."""
    panels = _dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        x, y, w, h = (panel["gridPos"][key] for key in "xywh")
        cells = {(column, line) for column in range(x, x + w) for line in range(y, y + h)}
        assert x + w <= WIDTH
        assert not cells & taken, panel["title"]
        taken |= cells


def test_panels_have_title_description_and_unit() -> None:
    """Every panel has title, description and unit, a current panel type, and the selected data source."""
    panels = _dashboard()["panels"]
    assert len(panels) > len(PANELS)
    for panel in panels:
        assert panel["title"]
        if panel["type"] == "row":
            continue
        assert panel["type"] in {"stat", "timeseries", "table", "state-timeline"}
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["fieldConfig"]["defaults"]["noValue"] in {"n/a", "nothing reported"}
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["instant"] for target in panel["targets"]) == (panel["type"] in {"stat", "table"})


def test_variable_names_and_uid_do_not_change() -> None:
    """Bookmarks and links from other dashboards contain them."""
    dashboard = _dashboard()
    assert dashboard["uid"] == "gpumon-overview"
    assert [one["name"] for one in dashboard["templating"]["list"]] == ["datasource", "instance", "gpu", "uuid"]
