"""What each panel must show for the fleet of tests/dashboard_fleet.py: VIEWS."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from gpu_expectations import GPU_VIEWS
from job_expectations import IDLE_COST_VIEWS, JOB_VIEWS
from panel_content import SIZE, WITHIN, Expectation, PanelContent, seconds_ago

from gpumon import __version__

SIM = {"sim-1", "sim-2", "sim-3", "sim-4"}
ALL = SIM | {"faulty", "driverless", "rack", "silent"}
SCRAPED = ALL - {"silent"}
HEALTHY_GPUS = {f"GPU {index}" for index in (0, 1, 2, 4, 6, 7)}
"""GPUs of `faulty` that answer."""


class View(NamedTuple):
    """Values of the variables of a dashboard, and what its panels show then."""

    chosen: Mapping[str, str]
    expected: Mapping[str, Expectation]


FLEET: Mapping[str, Expectation] = {
    "Healthy, 24 hours?": lambda content: 0.9 < content.number < 1,
    "Healthy, 7 days?": lambda content: 0.9 < content.number < 1,
    "In use, 24 hours?": lambda content: 0.45 < content.number < 0.55,
    "In use, 7 days?": lambda content: 0.45 < content.number < 0.55,
    "Nodes unfit for work?": lambda content: content.number == 2,
    "Nodes that do not answer?": lambda content: content.number == 1,
    # Eight nodes for a day; two failures in the past, and those of faulty and driverless.
    "Hours between failures?": lambda content: (8 * 24 - 4) / 4 < content.number < 8 * 24 / 4,
    "Simulated nodes?": lambda content: content.number == 7,
    "Where are GPUs lost between installed and in use?": lambda content: (
        content.values["expected"] == 60
        and content.values["answering"] == 42
        and content.values["healthy"] == 38
        and content.values["healthy, in use"] in range(22, 39)
        and content.values["failed"] == 14
        and content.values["unknown"] == 8
    ),
    "What is wrong, and what must be done?": lambda content: (
        content.has(node="faulty", GPU="3", check="gpu_lost", action="reboot", severity=3.0)
        and [line["severity"] for line in content.lines] == sorted(line["severity"] for line in content.lines)[::-1]
        and content.column("severity") <= {1.0, 2.0, 3.0}
        and content.has(node="faulty", GPU="0", check="gpu_xid_critical", action="reset")
        and content.has(node="driverless", check="gpu_driver_down")
        and content.column("node") <= {"faulty", "driverless", "rack"}
    ),
    "Which check is bad on which node?": lambda content: (
        ALL - SIM - {"rack"} <= set(content.cells) <= (ALL - SIM) | {"others"}
        and content.cells["silent"] == {"worst": -1}
        and content.cells["others"] == {"worst": 0}
        and content.cells["faulty"]["gpu_lost"] == content.cells["faulty"]["worst"] == 3
    ),
    "Which Xids occurred, 24 hours?": lambda content: (
        content.has(Xid="48", GPUs=1.0, nodes=1.0)
        and content.has(Xid="13", GPUs=1.0, nodes=1.0)
        and content.column("GPUs") == content.column("nodes") == {1.0}
        and all(0 < line["last"] < 2 * WITHIN for line in content.lines)
    ),
    "Which nodes are the hottest?": lambda content: (
        content.lines[0]["node"] == "faulty"
        and content.lines[0]["margin"] == -8
        and all(0 < line["margin"] < 100 for line in content.lines[1:])
        and 0 < content.lines[0]["slowed"] <= 1
    ),
    "Which nodes are in maintenance or released?": lambda content: (
        content.column("node") == {"rack"} and 3600 - 2 * WITHIN < content.lines[0]["ends in"] <= 3600
    ),
    "How has each node been?": lambda content: (
        set(content.values) == ALL
        and content.values["silent"] == -1
        and content.values["faulty"] == content.values["driverless"] == 3
        and {content.values[name] for name in SIM} == {0}
    ),
    "Which alerts fire, and for how long?": lambda content: (
        content.has(node="faulty", GPU="3", alert="GpuLost", severity="critical")
        and content.column("severity") <= {"critical", "warning", "info"}
        and all(0 < line["age"] < 2 * WITHIN for line in content.lines)
    ),
    "Which nodes fail again and again?": lambda content: (
        content.lines[0]["node"] == "faulty"
        and content.lines[0]["failures"] == 3
        and 7200 <= content.lines[0]["failed for"] <= 7200 + 3 * 300
        and content.has(node="driverless", failures=1.0)
    ),
    "Which boards wear out?": lambda content: (
        content.column("node") == {"faulty"}
        and content.has(GPU="1", rows_remapped=1.0, remap_failed=1.0, uncorrected_errors=0.0)
    ),
    "Do all nodes run the same versions?": lambda content: (
        content.has(of="gpumon", version=__version__, nodes=7.0)
        and content.has(of="GPU", version="NVIDIA GB200", nodes=1.0, node="rack")
        and content.has(of="GPU", version="NVIDIA H100 80GB HBM3", nodes=6.0)
        and len(content.lines) == 6
    ),
    "How is the load spread over the GPUs?": lambda content: (
        0.9 < content.values["most busy tenth"] <= 1
        and 0.3 < content.values["median"] <= content.values["most busy tenth"]
        and content.peaks["least busy tenth"] <= content.peaks["median"]
        and 0 < content.peaks["least busy tenth"] < 1
    ),
    "Which GPUs are held but idle?": lambda content: (
        0.01 < content.line(node="faulty", GPU="0")["busy"] < 0.05
        and all(60e9 < line["memory used"] < SIZE for line in content.lines if line["GPU"] == "0")
    ),
    "How much power do the GPUs draw?": lambda content: content.between(18 * 500, 60 * 1300, "all GPUs"),
    "Energy, 24 hours?": lambda content: 18 * 500 * 30 < content.number < 60 * 1300 * 2 * WITHIN,
}

GOOD: Mapping[str, Expectation] = {
    "What is wrong, and what must be done?": lambda content: (
        [line["reason"] for line in content.lines] == ["nothing, as far as nodes answer"]
    ),
    "Which GPUs are held but idle?": lambda content: content.lines == [{"node": "none"}],
    "Which nodes fail again and again?": lambda content: content.lines == [{"node": "none"}],
    "Hours between failures?": lambda content: content.number == -1,
    "Which check is bad on which node?": lambda content: content.cells == {"others": {"worst": 0}},
    "Which nodes are in maintenance or released?": lambda content: content.lines[0]["node"] == "none",
    "Which boards wear out?": lambda content: content.lines[0]["node"] == "none",
}
"""What states that nothing is wrong has no number."""
SILENT: Mapping[str, Expectation] = {
    "Where are GPUs lost between installed and in use?": lambda content: (
        content.values["expected"] == content.values["unknown"] == 8
        and all(math.isnan(content.values[name]) for name in ("answering", "healthy", "healthy, in use", "failed"))
    ),
}

NODE: Mapping[str, Expectation] = {
    "Fit for work?": lambda content: content.number == 3,
    "GPUs expected?": lambda content: content.number == 8,
    "GPUs that answer?": lambda content: content.number == 6,
    "Does the driver answer?": lambda content: content.number == 1,
    "Age of the readings?": lambda content: 0 < content.number < 30,
    "In maintenance until?": lambda content: content.number == 0,
    "How is each GPU?": lambda content: (
        content.has(GPU="3", verdict=3.0, do="reboot")
        and len(content.column("GPU")) == len(content.lines) == 8
        and content.has(GPU="4", verdict=3.0, do="inspect")
        and all(_reads(line) == (line["GPU"] not in {"3", "5"}) for line in content.lines)
        and 0.2 < content.line(GPU="1")["time busy"] <= 1
        and content.line(GPU="4")["margin"] == -8
    ),
    "Why is it so, and what must be done?": lambda content: (
        content.column("GPU") >= {"0", "1", "2", "3", "4", "5"} and content.has(GPU="2", check="nvlink_down")
    ),
    "How has each GPU been?": lambda content: (
        {name for name, value in content.values.items() if value == 3} == {f"GPU {index}" for index in range(6)}
    ),
    "Which windows were open?": lambda content: content.values == {"maintenance": 0, "probe": 0},
    "Which Xids occurred?": lambda content: content.values == {"GPU 0 Xid 48": 1, "GPU 2 Xid 13": 1},
    "Were there memory errors?": lambda content: content.between(1, 100, "GPU 2 corrected dram"),
    "Why were clocks reduced?": lambda content: (
        content.values.get("GPU 4 hw_thermal") == content.values.get("GPU 4 hw_slowdown") == 1
    ),
    "In which performance state was each GPU?": lambda content: content.between(0, 0, *HEALTHY_GPUS),
    "How long do kernels run?": lambda content: (
        content.values["GPU 0"] < 0.05 and 0.95 < content.values["GPU 4"] <= 1 and "GPU 3" not in content.values
    ),
    "How much of the GPU is used?": lambda content: 0.5 < content.values["GPU 4"] <= 1,
    "How much memory is used?": lambda content: content.between(0.8, 0.9, *HEALTHY_GPUS),
    "How near is the power limit?": lambda content: content.between(0.4, 1.05, *HEALTHY_GPUS),
    "How hot are the GPUs?": lambda content: content.values["GPU 4"] == 95 and set(content.values) == HEALTHY_GPUS,
    "How near is the thermal limit?": lambda content: (
        content.values["GPU 4"] == -8 and 10 < content.values["GPU 1"] < 60 and set(content.values) == HEALTHY_GPUS
    ),
    "Which NVLinks are up?": lambda content: (
        content.cells["2"]["3"] == 0
        and content.cells["2"]["9"] == 1
        and len(content.cells["1"]) == 18
        and content.cells["3"] == {"0": -1}
        and content.cells["7"] == {"0": -2}
    ),
    "How are the ports?": lambda content: (
        len(content.lines) == 8
        and content.has(device="mlx5_3", up=0.0, role="fabric", nearest_GPU="3")
        and content.has(device="mlx5_4", up=1.0, speed=50e9)
    ),
    "How much do the GPUs exchange?": lambda content: 1e9 < content.values["GPU 1"] < 450e9,
    "How much do the ports carry?": lambda content: content.peaks_between(
        1e9, 200e9, *(f"mlx5_{port}:1" for port in range(8))
    ),
}
READINGS: Mapping[str, tuple[float, float]] = {
    "margin": (-8, 60),
    "power": (50, 750),
    "memory used": (60e9, SIZE),
    "processes": (1, 2),
}
"""Lowest and highest reading of a GPU that answers, by the heading of its column."""


def _reads(line: Mapping[str, float]) -> bool:
    """Return whether a line has plausible readings."""
    return all(name in line and low <= line[name] <= high for name, (low, high) in READINGS.items())


IN_MAINTENANCE: Mapping[str, Expectation] = {
    "In maintenance until?": lambda content: -3600 < seconds_ago(content.number) < -3600 + 2 * WITHIN,
    "Which windows were open?": lambda content: content.values == {"maintenance": 1, "probe": 0},
}

LINKS: Mapping[str, Expectation] = {
    "NVLinks down?": lambda content: content.number == 1,
    "GPUs whose links are unknown?": lambda content: content.number == 2 + 8 + 8,
    "Fabric ports down?": lambda content: content.number == 1,
    "GPUs outside their fabric?": lambda content: content.number == 2,
    "Fabric managers or IMEX down?": lambda content: content.number == 1,
    "Which NVLinks are down?": lambda content: (
        len(content.lines) == 1 and content.has(node="faulty", GPU="2", link="3")
    ),
    "Which ports are down?": lambda content: (
        len(content.lines) == 1 and content.has(node="faulty", device="mlx5_3", role="fabric", nearest_GPU="3")
    ),
    "Which GPUs are outside their fabric?": lambda content: (
        content.has(node="faulty", GPU="0", state=4.0, code=999.0)
        and content.has(node="faulty", GPU="6", state=2.0)
        and len(content.lines) == 2
    ),
    "Which services of the links ran?": lambda content: (
        content.values["rack IMEX"] == 0 and content.values["sim-1 fabric manager"] == 1
    ),
    "Which NVLinks had errors?": lambda content: content.between(1, 500, "faulty GPU 2 link 9 crc"),
    "Which ports had errors?": lambda content: content.peaks_between(100, 2000, "faulty mlx5_4:1 symbol_error"),
    "Which ports went down and came back?": lambda content: content.peaks_between(1, 20, "faulty mlx5_3:1"),
    "Which NVSwitches had errors?": lambda content: (
        content.lines == [{"node": "faulty", "NVSwitch": "00000000:C1:00.0", "SXid": "12028", "count": 1}]
    ),
    "Which nodes use NVLink most?": lambda content: 1e9 < content.values["sim-1"] < 8 * 450e9,
    "Which nodes use their ports most?": lambda content: 1e9 < content.peaks["sim-1"] < 8 * 100e9,
    "How fast is an all-reduce on each node?": lambda content: content.between(
        1e6, 1e11, "sim-3 gloo default", "sim-4 gloo default"
    ),
    "Is a node slower than it was?": lambda content: (
        content.values == {"sim-1 nccl default": 0.8} | {f"sim-{number} nccl default": 1 for number in (2, 3, 4)}
    ),
    "Is a node slower than the fleet?": lambda content: (
        content.values == {"sim-1 default": 0.7} | {f"sim-{number} default": 1 for number in (2, 3, 4)}
    ),
    "Is a node slower than published figures?": lambda content: (
        content.values == {"sim-1 nccl default": 0.6} | {f"sim-{number} nccl default": 1 for number in (2, 3, 4)}
    ),
    "When was each node last measured, and with what result?": lambda content: (
        content.has(node="sim-2", wrong_elements=3.0)
        and all(_has_measurement(content, name) for name in ("sim-3", "sim-4"))
        and len(content.lines) == 3
    ),
    "How did runs end?": lambda content: (
        content.peaks_between(0.5, 3, "failed", "ok")
        if "ok" in content.values
        else content.peaks_between(0.5, 2, "failed")
    ),
    "Why were runs skipped?": lambda content: content.peaks_between(0.5, 5, "busy"),
}


def _has_measurement(content: PanelContent, node: str) -> bool:
    line = content.line(node=node, ranks=2.0, wrong_elements=0.0)
    ago = [seconds_ago(line[name]) for name in ("last run", "last success")]
    return all(0 < seconds < 3 * WITHIN for seconds in ago) and 0.1 < line["duration"] < WITHIN


AGENTS: Mapping[str, Expectation] = {
    "Alerts that fire?": lambda content: 6 <= content.number <= 40,
    "Pages for each fault, 24 hours?": lambda content: 0.1 < content.number < 3,
    "Notifications that failed, 24 hours?": lambda content: 0.5 < content.number < 100,
    "Notifications that an agent could not deliver, 24 hours?": lambda content: 0.5 < content.number < 500,
    "Which alerts fired, where and when?": lambda content: (
        content.values["faulty GpuLost"] == 3 and set(content.values.values()) <= {1, 2, 3}
    ),
    "Which agents do not answer, and since when?": lambda content: (
        [line["node"] for line in content.lines] == ["silent"]
        and 0 < seconds_ago(content.lines[0]["last answer"]) < 2 * WITHIN
    ),
    "How long was each node blind in 24 hours?": lambda content: (
        content.column("node") == {"silent", "driverless"}
        and all(60 <= line[list(line)[-1]] < 2 * WITHIN for line in content.lines)
    ),
    "How old are the readings?": lambda content: (
        2 * WITHIN > content.values["driverless"] > 10 > content.values["sim-1"]
    ),
    "How long does a poll take?": lambda content: content.between(1e-4, 20) and len(content.values) > 15,
    "Which driver calls failed?": lambda content: 0 < content.values["faulty fast GpuIsLost"] < 100,
    "Why was a sampler replaced?": lambda content: content.peaks_between(0.5, 3, "faulty deadline"),
    "How much memory does an agent take?": lambda content: content.between(30e6, 3e9, *SCRAPED),
    "How many series does an agent export?": lambda content: content.between(100, 1200, *SCRAPED),
    "How often is the driver called?": lambda content: 1 < content.values["sim-1"] < 1000,
    "Which versions run where?": lambda content: (
        content.column("node") == SCRAPED
        and content.column("gpumon") == {__version__}
        and all(("driver" in line) == (line["node"] != "driverless") for line in content.lines)
    ),
}
ALL_ANSWER: Mapping[str, Expectation] = {
    "Which agents do not answer, and since when?": lambda content: content.lines == [{"node": "none"}],
}

VIEWS: Mapping[str, tuple[View, ...]] = {
    "gpumon-fleet": (
        View({}, FLEET),
        View({"instance": "sim-1"}, GOOD),
        View({"instance": "silent"}, SILENT),
        View({"instance": "faulty", "gpu": "7"}, {"Which GPUs are held but idle?": lambda content: content.nothing}),
    ),
    "gpumon-node": (View({"instance": "faulty"}, NODE), View({"instance": "rack"}, IN_MAINTENANCE)),
    "gpumon-gpu": tuple(View(chosen, expected) for chosen, expected in GPU_VIEWS),
    "gpumon-links": (View({}, LINKS),),
    "gpumon-job": tuple(View(chosen, expected) for chosen, expected in JOB_VIEWS),
    "gpumon-idle": tuple(View(chosen, expected) for chosen, expected in IDLE_COST_VIEWS),
    "gpumon-agents": (View({}, AGENTS), View({"instance": "sim-1"}, ALL_ANSWER)),
}
"""By the uid of the dashboard. The first view has each of its panels, in their order."""
ACCEPTED: Mapping[tuple[str, str], str] = {
    ("Must the board be replaced?", "B returns nothing"): "Only boards before Ampere retire pages.",
    ("Must the board be replaced?", "C returns nothing"): "Only boards before Ampere retire pages.",
    ("Which nodes are in maintenance or released?", "B returns nothing"): "No GPU of this fleet is released.",
}
"""Reason by title of the panel and name of a wrong answer that need not be rejected."""
