"""What each panel shows for a fleet of eight nodes with known faults, from a real Prometheus."""

from __future__ import annotations

import dataclasses
import json
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from agents import eventually
from dashboard_fleet import DashboardFleet
from each_case import each_case
from expectations import ACCEPTED, ALL, VIEWS, View
from panel_content import WITHIN, PanelContent, agrees, wrong_answers

from dashboards.answers import LETTERS, Series, Source
from dashboards.generate import DASHBOARDS, dashboards
from dashboards.panels import Dashboard

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

INTERVAL = 2
STEP = 2.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardFleet]:
    with DashboardFleet(tmp_path_factory.mktemp("fleet"), INTERVAL).up() as running:
        yield running


def _source(fleet: DashboardFleet, variables: Mapping[str, str]) -> Source:
    now = time.time()
    times = {"start": fleet.started, "end": now, "step": STEP, "scrape_interval": float(INTERVAL)}
    return Source(url=fleet.url, variables=variables, **times)


@each_case("dashboard", DASHBOARDS)
def test_every_panel_shows_the_state_of_the_fleet(dashboard: Dashboard, fleet: DashboardFleet) -> None:
    """Each panel returns what its title asks: the faults that were injected, and nothing else.

    Its expectations reject the answer if one of its queries returns nothing, or other values.
    """
    views = VIEWS[dashboard.uid]
    assert [panel.title for panel in dashboard.panels] == list(views[0].expected)
    answers: dict[tuple[int, str], list[list[Series]]] = {}
    wrong: dict[str, Any] = {}

    def all_right() -> bool:
        wrong.clear()
        for number, view in enumerate(views):
            source = _source(fleet, view.chosen)
            for panel in dashboard.panels:
                if panel.title in view.expected:
                    answer = answers[number, panel.title] = source.answers(panel)
                    content = PanelContent(panel, answer, STEP)
                    if not agrees(view.expected[panel.title], content):
                        wrong[f"{panel.title} {dict(view.chosen)}"] = content.lines if panel.columns else content.values
        return not wrong

    try:
        eventually(all_right, within=WITHIN, every=1)
    except AssertionError:
        pytest.fail("\n".join(f"{title} {answer}" for title, answer in wrong.items()))
    assert not list(_accepted_wrongly(dashboard, views, answers))


def _accepted_wrongly(
    dashboard: Dashboard, views: Sequence[View], answers: Mapping[tuple[int, str], list[list[Series]]]
) -> Iterator[str]:
    """Yield the wrong answers that no view rejects, and the queries that return nothing in any view."""
    for panel in dashboard.panels:
        asked = [number for number, view in enumerate(views) if panel.title in view.expected]
        for place, query in enumerate(panel.queries):
            if not any(answers[number, panel.title][place] for number in asked):
                name = f"{LETTERS[place]} returns nothing"
                if (panel.title, name) not in ACCEPTED:
                    yield f"{panel.title} {name}: {query.expr}"
        rejected: dict[str, bool] = {}
        for number in asked:
            for name, answer in wrong_answers(panel, answers[number, panel.title]):
                rejects = not agrees(views[number].expected[panel.title], PanelContent(panel, answer, STEP))
                rejected[name] = rejected.get(name, False) or rejects
        for name, is_rejected in rejected.items():
            if not is_rejected and (panel.title, name) not in ACCEPTED:
                yield f"{panel.title} {name}"


GOOD = {"nothing is wrong", "nothing, as far as nodes answer", "none", "none fires", "MIG is off"}
"""Texts of lines that state that nothing is wrong."""
NOT_ABOUT_THE_NODE = {
    *("Healthy, 24 hours?", "Healthy, 7 days?", "Hours between failures?", "Which nodes fail again and again?"),
    *("Alerts that fire?", "Which alerts fire, and for how long?", "Which alerts fired, where and when?"),
}
"""Panels about the past of a node, or about the alerts in Prometheus: the answer is known of a silent node too."""


WHAT_IS_WRONG = {
    *("What is wrong, and what must be done?", "Why is it so, and what must be done?", "What is wrong with it?"),
    "Which verdicts are on the job, its GPUs and its nodes?",
    *("NVLinks down?", "Which NVLinks are down?", "GPUs outside their fabric?"),
}


def test_nothing_states_that_a_silent_node_is_good(fleet: DashboardFleet) -> None:
    def good(node: str) -> set[str]:
        source = _source(fleet, {"instance": node, "gpu": "1", "job_id": "slurm/1000"})
        source = dataclasses.replace(source, start=source.end - 10 * STEP)
        content = [
            PanelContent(panel, source.answers(panel), STEP) for dashboard in DASHBOARDS for panel in dashboard.panels
        ]
        return {each.panel.title for each in content if _is_good(each)}

    eventually(lambda: len(good("sim-1")) > 25, within=WITHIN, every=1)
    eventually(lambda: not good("silent") - NOT_ABOUT_THE_NODE, within=WITHIN, every=1)
    eventually(lambda: not good("driverless") & WHAT_IS_WRONG, within=WITHIN, every=1)


def _is_good(content: PanelContent) -> bool:
    """Return whether the panel states that there is no fault: by its text, or as a number in green."""
    if content.panel.kind == "stat" and content.series:
        words, colors = content.panel.words, content.panel.colors
        reached = [color for limit, color in colors.items() if limit is None or content.number >= limit]
        return (words[content.number][1] if content.number in words else reached[-1]) == "green"
    if content.panel.kind == "table":
        return any(
            GOOD & {str(cell) for heading, cell in line.items() if heading != "action"} for line in content.lines
        )
    return bool(content.others)


def test_variables_list_blind_nodes(fleet: DashboardFleet) -> None:
    """A node whose driver or agent does not answer stays in the list; its GPUs are those of the others."""
    variables = json.loads(dashboards()["gpumon-fleet.json"])["templating"]["list"][2:]
    found = {variable["name"]: _values(variable["definition"], fleet) for variable in variables}
    assert set(found["instance"]) == ALL
    assert set(found["gpu"]) == {str(index) for index in range(8)}
    assert len(found["uuid"]) >= 6 * 8 + 4


def _values(definition: str, fleet: DashboardFleet) -> list[str]:
    asked = re.fullmatch(r"label_values\((.*), (\w+)\)", definition)
    assert asked is not None
    form = urllib.parse.urlencode({"match[]": _source(fleet, {}).filled(asked[1])})
    with urllib.request.urlopen(f"{fleet.url}/api/v1/label/{asked[2]}/values?{form}", timeout=30) as answer:
        return list(json.load(answer)["data"])


def test_annotations_mark_alerts_and_xids(fleet: DashboardFleet) -> None:
    """Critical alerts, Xids, starts of agents, the replaced sampler and the maintenance of a node are found."""
    asked = json.loads(dashboards()["gpumon-fleet.json"])["annotations"]["list"]
    queries = {annotation["name"]: annotation["expr"] for annotation in asked}
    source = _source(fleet, {})
    eventually(lambda: fleet.ask(source.filled(queries["Alerts"])))
    for name in ("Xids", "Agent started", "Sampler replaced"):
        marked = f"count_over_time(({source.filled(queries[name])})[10m:{INTERVAL}s])"
        eventually(partial(fleet.ask, marked))
    [maintenance] = fleet.ask(source.filled(queries["Maintenance"]))
    assert maintenance["metric"]["instance"] == "rack"
