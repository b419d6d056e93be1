"""What each panel shows for a fleet of eight nodes with known faults, from a real Prometheus."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from agents import eventually
from dashboard_fleet import DashboardFleet
from each_case import each_case

from dashboards.answers import Line, Series, Source, flat, lines, pivot
from dashboards.generate import DASHBOARDS, dashboards
from dashboards.panels import OTHERS, Dashboard, Panel
from gpumon import __version__

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

INTERVAL = 2
STEP = 2.0
WITHIN = 240.0
"""Maximum seconds until every panel shows the faults. A hot GPU or a link that is down fails after two minutes."""
CHOSEN: Mapping[str, Mapping[str, str]] = {
    "gpumon-node": {"instance": "faulty"},
    "gpumon-gpu": {"instance": "faulty", "gpu": "2"},
}
ALL = {"sim-1", "sim-2", "sim-3", "sim-4", "faulty", "driverless", "rack", "silent"}
SIM = {"sim-1", "sim-2", "sim-3", "sim-4"}
HEALTHY_GPUS = {f"GPU {index}" for index in (0, 1, 2, 4, 6, 7)}
"""GPUs of `faulty` that answer."""


class Shown:
    """What a panel shows."""

    def __init__(self, panel: Panel, answers: list[list[Series]]) -> None:
        """Keep the series that a graph still shows at its right end, and all increases."""
        self.panel, self._answers = panel, answers
        end = max((series.points[-1][0] for series in flat(answers)), default=0.0)
        current = -math.inf if panel.increments else end - 2 * STEP
        shown = [series for series in flat(answers) if series.points[-1][0] > current]
        self.series = [series for series in shown if series.name != OTHERS]
        self.states_others = len(shown) > len(self.series)
        """Whether it states that nothing else occurred."""

    @property
    def number(self) -> float:
        """Return the only value."""
        [series] = self.series
        return series.last

    @property
    def values(self) -> dict[str, float]:
        """Return the last value by the name of the series."""
        return {series.name: series.last for series in self.series}

    @property
    def lines(self) -> list[Line]:
        """Return the lines of a table."""
        return lines(self.panel, self._answers)

    @property
    def cells(self) -> dict[str, dict[str, float]]:
        """Return the cells of a matrix."""
        return pivot(self.panel, self._answers)

    def has(self, **cells: Any) -> bool:
        """Return whether a line has these cells. Underscores in a heading are blanks."""
        wanted = {heading.replace("_", " "): value for heading, value in cells.items()}
        return any(wanted.items() <= line.items() for line in self.lines)

    def column(self, heading: str) -> set[Any]:
        """Return the cells of a column."""
        return {line.get(heading) for line in self.lines}

    def between(self, low: float, high: float, *names: str) -> bool:
        """Return whether the last values lie between these: of all series, or of exactly the named ones."""
        values = self.values
        named = not names or set(names) == set(values)
        return bool(values) and named and all(low <= value <= high for value in values.values())

    @property
    def nothing(self) -> bool:
        """Return whether there is no series."""
        return not self.series


EXPECTED: Mapping[str, Mapping[str, Callable[[Shown], bool]]] = {
    "gpumon-fleet": {
        "Healthy, 24 hours?": lambda shown: 0.9 < shown.number < 1,
        "Healthy, 7 days?": lambda shown: 0.9 < shown.number < 1,
        "In use, 24 hours?": lambda shown: 0.45 < shown.number < 0.55,
        "In use, 7 days?": lambda shown: 0.45 < shown.number < 0.55,
        "Nodes unfit for work?": lambda shown: shown.number == 2,
        "Nodes that do not answer?": lambda shown: shown.number == 1,
        # Eight nodes for a day; two failures in the past, and those of faulty and driverless if 5 minutes have begun.
        "Hours between failures?": lambda shown: 8 * 24 / 4 - 1 < shown.number < 8 * 24 / 2 + 1,
        "Simulated nodes?": lambda shown: shown.number == 7,
        "Where are GPUs lost between installed and in use?": lambda shown: (
            shown.values["expected"] == 60
            and shown.values["answering"] == 42
            and shown.values["healthy"] == 38
            and 22 <= shown.values["healthy, in use"] <= 38
            and shown.values["unknown"] in {8, 16}
        ),
        "What is wrong, and what must be done?": lambda shown: (
            shown.has(node="faulty", GPU="3", check="gpu_lost", action="reboot")
            and shown.has(node="faulty", GPU="0", check="gpu_xid_critical", action="reset")
            and shown.has(node="driverless", check="gpu_driver_down")
            and shown.column("node") <= {"faulty", "driverless", "rack"}
        ),
        "Which check is bad on which node?": lambda shown: (
            set(shown.cells) == ALL
            and shown.cells["silent"] == {"worst": -1}
            and shown.cells["sim-1"] == {"worst": 0}
            and shown.cells["faulty"]["gpu_lost"] == shown.cells["faulty"]["worst"] == 3
        ),
        "How has each node been?": lambda shown: (
            set(shown.values) == ALL
            and shown.values["silent"] == -1
            and shown.values["faulty"] == shown.values["driverless"] == 3
            and shown.values["sim-1"] == 0
        ),
        "Which alerts fire, and for how long?": lambda shown: (
            shown.has(node="faulty", GPU="3", alert="GpuLost")
            and shown.column("severity") <= {"critical", "warning", "info"}
            and all(0 < line["age"] < 2 * WITHIN for line in shown.lines)
        ),
        "Which nodes fail again and again?": lambda shown: (
            shown.lines[0]["node"] == "faulty"
            and shown.lines[0]["failures"] in {2, 3}
            and 7200 <= shown.lines[0]["failed for"] <= 7200 + 3 * 300
        ),
        "Do all nodes run the same versions?": lambda shown: (
            shown.has(of="gpumon", version=__version__, nodes=7.0)
            and shown.has(of="GPU", version="NVIDIA GB200", node="rack")
            and shown.has(of="GPU", version="NVIDIA GB200", nodes=1.0)
            and len(shown.lines) == 6
        ),
        "How is the load spread over the GPUs?": lambda shown: (
            0 <= shown.values["least busy tenth"] <= shown.values["median"] <= shown.values["most busy tenth"] <= 1
            and shown.values["most busy tenth"] > 0.8
        ),
        "Which GPUs are held but idle?": lambda shown: (
            shown.has(node="faulty", GPU="0")
            and all(line["memory used"] > 60e9 for line in shown.lines if line["GPU"] == "0")
        ),
        "How much power do the GPUs draw?": lambda shown: shown.between(18 * 500, 60 * 1300, "all GPUs"),
        "Energy, 24 hours?": lambda shown: shown.number > 18 * 500 * 30,
    },
    "gpumon-node": {
        "Fit for work?": lambda shown: shown.number == 3,
        "GPUs expected?": lambda shown: shown.number == 8,
        "GPUs that answer?": lambda shown: shown.number == 6,
        "Does the driver answer?": lambda shown: shown.number == 1,
        "Age of the readings?": lambda shown: 0 <= shown.number < 30,
        "In maintenance until?": lambda shown: shown.number == 0,
        "How is each GPU?": lambda shown: (
            shown.has(GPU="3", verdict=3.0, do="reboot")
            and len(shown.column("GPU")) == 8
            and shown.has(GPU="4", verdict=3.0, do="inspect")
            and all(("power" in line) == (line["GPU"] not in {"3", "5"}) for line in shown.lines)
        ),
        "Why is it so, and what must be done?": lambda shown: (
            shown.column("GPU") >= {"0", "1", "2", "3", "4", "5"} and shown.has(GPU="2", check="nvlink_down")
        ),
        "How has each GPU been?": lambda shown: (
            {name for name, value in shown.values.items() if value == 3} == {f"GPU {index}" for index in range(6)}
        ),
        "Which windows were open?": lambda shown: shown.values == {"maintenance": 0, "probe": 0},
        "Which Xids occurred?": lambda shown: shown.values == {"GPU 0 Xid 48": 1, "GPU 2 Xid 13": 1},
        "Were there memory errors?": lambda shown: shown.between(1, 100, "GPU 2 corrected dram"),
        "Why were clocks reduced?": lambda shown: {"GPU 4 hw_thermal", "GPU 4 hw_slowdown"} <= set(shown.values),
        "In which performance state was each GPU?": lambda shown: shown.between(0, 0, *HEALTHY_GPUS),
        "How long do kernels run?": lambda shown: (
            shown.values["GPU 0"] < 0.05 and shown.values["GPU 4"] > 0.95 and "GPU 3" not in shown.values
        ),
        "How much of the GPU is used?": lambda shown: shown.values["GPU 4"] > 0.5,
        "How much memory is used?": lambda shown: shown.between(0.05, 1, *HEALTHY_GPUS),
        "How near is the power limit?": lambda shown: shown.between(0.05, 1.05, *HEALTHY_GPUS),
        "How hot are the GPUs?": lambda shown: shown.values["GPU 4"] == 95 and set(shown.values) == HEALTHY_GPUS,
        "How near is the thermal limit?": lambda shown: shown.values["GPU 4"] < 0 < shown.values["GPU 1"],
        "Which NVLinks are up?": lambda shown: (
            shown.cells["2"]["3"] == 0
            and shown.cells["2"]["9"] == 1
            and len(shown.cells["1"]) == 18
            and shown.cells["3"] == {"0": -1}
        ),
        "How are the ports?": lambda shown: (
            len(shown.lines) == 8
            and shown.has(device="mlx5_3", up=0.0, role="fabric", nearest_GPU="3")
            and shown.has(device="mlx5_4", up=1.0, speed=50e9)
        ),
        "How much do the GPUs exchange?": lambda shown: shown.values["GPU 1"] > 1e9,
        "How much do the ports carry?": lambda shown: len(shown.values) == 8 and shown.values["mlx5_4:1"] >= 0,
    },
    "gpumon-gpu": {
        "Verdict?": lambda shown: shown.number == 3,
        "Does it answer?": lambda shown: shown.number == 1,
        "Driver recommends?": lambda shown: shown.number == 0,
        "Processes?": lambda shown: shown.number == 1,
        "Which board is it?": lambda shown: shown.has(name="NVIDIA H100 80GB HBM3", vbios="96.00.A5.00.01"),
        "What is wrong with it?": lambda shown: shown.has(check="nvlink_down", action="reset"),
        "How has this GPU been?": lambda shown: shown.values == {"verdict": 3},
        "When did it last log each Xid?": lambda shown: (
            [line["Xid"] for line in shown.lines if line.get("count")] == ["13"]
        ),
        "Which Xids occurred in this time?": lambda shown: shown.values == {"Xid 13": 1},
        "How busy are its parts?": lambda shown: shown.between(
            0.1, 1, "kernels", "multiprocessors", "tensor cores", "memory bandwidth"
        ),
        "How is its memory used?": lambda shown: (
            0 < shown.values["reserved"] < shown.values["used"] < shown.values["size"]
        ),
        "How fast are its clocks?": lambda shown: shown.values["sm"] <= shown.values["maximum sm"] == 1.98e9,
        "How long was each clock limit active?": lambda shown: shown.between(0, 1.1) and "hw_thermal" in shown.values,
        "How hot is it?": lambda shown: shown.values["core"] < shown.values["core slows down at"] == 89,
        "How far is it from slowing down?": lambda shown: shown.between(1, 90, "margin"),
        "How much power does it draw?": lambda shown: 60 < shown.values["power"] <= shown.values["limit"] == 700,
        "How many ECC errors has it counted?": lambda shown: (
            shown.values["corrected dram"] > 3 and shown.values["uncorrected dram"] == 0
        ),
        "Are memory rows remapped?": lambda shown: shown.lines == [{"remapped rows": 0, "pending": 0, "failed": 0}],
        "How wide is its PCIe link?": lambda shown: shown.values["lanes"] == 8 and shown.values["possible"] == 16,
        "How much goes over PCIe and NVLink?": lambda shown: (
            shown.values["NVLink received"] > 1e9 and shown.values["PCIe sent"] >= 0
        ),
        "Did its PCIe link have errors?": lambda shown: shown.between(1, 200, "replay"),
        "Did its NVLinks have errors?": lambda shown: shown.between(1, 500, "link 9 crc"),
        "Which MIG instances has it?": lambda shown: shown.column("profile") == {"MIG is off"},
    },
    "gpumon-links": {
        "NVLinks down?": lambda shown: shown.number == 1 + (2 + 8) * 18,  # and those of all GPUs that do not answer
        "Fabric ports down?": lambda shown: shown.number == 1,
        "GPUs outside their fabric?": lambda shown: shown.number == 2,
        "Fabric managers or IMEX down?": lambda shown: shown.number == 1,
        "Which NVLinks are down?": lambda shown: len(shown.lines) == 1 and shown.has(node="faulty", GPU="2", link="3"),
        "Which ports are down?": lambda shown: (
            len(shown.lines) == 1 and shown.has(node="faulty", device="mlx5_3", role="fabric", nearest_GPU="3")
        ),
        "Which GPUs are outside their fabric?": lambda shown: (
            shown.has(node="faulty", GPU="0", state=3.0, code=999.0)
            and shown.has(node="faulty", GPU="6", state=2.0)
            and len(shown.lines) == 2
        ),
        "Which services of the links ran?": lambda shown: (
            shown.values["rack IMEX"] == 0 and shown.values["sim-1 fabric manager"] == 1
        ),
        "Which NVLinks had errors?": lambda shown: shown.between(1, 500, "faulty GPU 2 link 9 crc"),
        "Which ports had errors?": lambda shown: shown.values["faulty mlx5_4:1 symbol_error"] > 1,
        "Which ports went down and came back?": lambda shown: shown.between(1, 20, "faulty mlx5_3:1"),
        "Which NVSwitches had errors?": lambda shown: (
            shown.lines == [{"node": "faulty", "NVSwitch": "00000000:C1:00.0", "SXid": "12028", "count": 1}]
        ),
        "Which nodes use NVLink most?": lambda shown: shown.values["sim-1"] > 1e9,
        "Which nodes use their ports most?": lambda shown: "sim-1" in shown.values,
        "How fast is an all-reduce on each node?": lambda shown: shown.between(
            1e6, 1e11, "sim-3 gloo default", "sim-4 gloo default"
        ),
        "Is a node slower than it was?": lambda shown: (
            shown.values == {"sim-1 nccl default": 0.8} | {f"sim-{number} nccl default": 1 for number in (2, 3, 4)}
        ),
        "Is a node slower than the fleet?": lambda shown: (
            shown.values == {"sim-1 default": 0.7} | {f"sim-{number} default": 1 for number in (2, 3, 4)}
        ),
        "Is a node slower than published figures?": lambda shown: shown.values["sim-1 nccl default"] == 0.6,
        "When was each node last measured, and with what result?": lambda shown: (
            shown.column("node") >= {"sim-3", "sim-4"} and shown.has(node="sim-3", ranks=2.0, wrong_elements=0.0)
        ),
        "How long ago was each node measured?": lambda shown: shown.between(0, 600, "sim-3", "sim-4"),
        "How did runs end?": lambda shown: shown.nothing or set(shown.values) == {"ok"},
        "Why were runs skipped?": lambda shown: shown.between(0.5, 5, "busy"),
    },
    "gpumon-agents": {
        "Alerts that fire?": lambda shown: shown.number >= 6,
        "Notifications for each alert, 24 hours?": lambda shown: shown.number > 0,
        "Notifications that failed, 24 hours?": lambda shown: shown.number > 0,
        "Notifications that an agent could not deliver, 24 hours?": lambda shown: shown.number > 0,
        "Which alerts fired, where and when?": lambda shown: shown.values["faulty GpuLost"] == 3,
        "Which agents do not answer, and since when?": lambda shown: (
            [line["node"] for line in shown.lines] == ["silent"]
            and time.time() - shown.lines[0]["last answer"] / 1000 < 2 * WITHIN
        ),
        "How long was each node blind in 24 hours?": lambda shown: (
            shown.column("node") == {"silent", "driverless"}
            and all(60 <= line[list(line)[-1]] < 2 * WITHIN for line in shown.lines)
        ),
        "How old are the readings?": lambda shown: shown.values["driverless"] > 10 > shown.values["sim-1"],
        "How long does a poll take?": lambda shown: shown.between(0, 20),
        "Which driver calls failed?": lambda shown: shown.values["faulty fast GpuIsLost"] > 0,
        "Why was a sampler replaced?": lambda shown: shown.nothing or "faulty deadline" in shown.values,
        "How much memory does an agent take?": lambda shown: shown.values["sim-1"] > 30e6,
        "How many series does an agent export?": lambda shown: shown.between(100, 1200),
        "How often is the driver called?": lambda shown: shown.values["sim-1"] > 1,
        "Which versions run where?": lambda shown: (
            shown.column("node") == ALL - {"silent"} and shown.column("gpumon") == {__version__}
        ),
    },
}


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
    """Each panel returns what its title asks: the faults that were injected, and nothing else."""
    expected = EXPECTED[dashboard.uid]
    assert [panel.title for panel in dashboard.panels] == list(expected)
    wrong: dict[str, Any] = {}

    def all_right() -> bool:
        source = _source(fleet, CHOSEN.get(dashboard.uid, {}))
        wrong.clear()
        for panel in dashboard.panels:
            shown = Shown(panel, source.answers(panel))
            if not _agrees(expected[panel.title], shown):
                wrong[panel.title] = shown.lines if panel.kind == "table" else shown.values or shown.series
        return not wrong

    try:
        eventually(all_right, within=WITHIN, every=1)
    except AssertionError:
        pytest.fail("\n".join(f"{title} {answer}" for title, answer in wrong.items()))


def _agrees(expectation: Callable[[Shown], bool], shown: Shown) -> bool:
    try:
        return expectation(shown)
    except (KeyError, ValueError, IndexError):  # a series that is not there yet
        return False


GOOD = {"nothing is wrong", "nothing, as far as nodes answer", "none", "none fires", "MIG is off"}
"""Texts of lines that state that nothing is wrong."""
NOT_ABOUT_THE_NODE = {
    *("Healthy, 24 hours?", "Healthy, 7 days?"),
    *("Alerts that fire?", "Which alerts fire, and for how long?", "Which alerts fired, where and when?"),
}
"""Panels about the past of a node, or about the alerts in Prometheus: the answer is known of a silent node too."""


WHAT_IS_WRONG = {
    *("What is wrong, and what must be done?", "Why is it so, and what must be done?", "What is wrong with it?"),
    *("NVLinks down?", "Which NVLinks are down?", "GPUs outside their fabric?"),
}


def test_nothing_states_that_a_silent_node_is_good(fleet: DashboardFleet) -> None:
    """A good node has panels that state it; of a silent node none about its state does."""

    def good(node: str) -> set[str]:
        source = _source(fleet, {"instance": node, "gpu": "1"})
        source = dataclasses.replace(source, start=source.end - 10 * STEP)
        shown = [Shown(panel, source.answers(panel)) for dashboard in DASHBOARDS for panel in dashboard.panels]
        return {each.panel.title for each in shown if _is_good(each)}

    eventually(lambda: len(good("sim-1")) > 25, within=WITHIN, every=1)
    eventually(lambda: not good("silent") - NOT_ABOUT_THE_NODE, within=WITHIN, every=1)
    eventually(lambda: not good("driverless") & WHAT_IS_WRONG, within=WITHIN, every=1)


def _is_good(shown: Shown) -> bool:
    """Return whether the panel states that there is no fault: by its text, or as a number in green."""
    if shown.panel.kind == "stat" and shown.series:
        words, colors = shown.panel.words, shown.panel.colors
        reached = [color for limit, color in colors.items() if limit is None or shown.number >= limit]
        return (words[shown.number][1] if shown.number in words else reached[-1]) == "green"
    if shown.panel.kind == "table":
        return any(GOOD & {str(cell) for heading, cell in line.items() if heading != "action"} for line in shown.lines)
    return shown.states_others


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
    """The alerts that page, the Xids of the last minute and the end of an agent are found; no maintenance is."""
    asked = json.loads(dashboards()["gpumon-fleet.json"])["annotations"]["list"]
    queries = {annotation["name"]: annotation["expr"] for annotation in asked}
    source = _source(fleet, {})
    eventually(lambda: fleet.ask(source.filled(queries["Alerts"])))
    for name in ("Xids", "Agent stopped or started"):
        assert fleet.ask(f"count_over_time(({source.filled(queries[name])})[10m:{INTERVAL}s])"), name
    assert not fleet.ask(source.filled(queries["Maintenance"]))
