"""What each panel of the dashboards about jobs and their owners must show: JOB_VIEWS and IDLE_COST_VIEWS."""

from __future__ import annotations

import math
from collections.abc import Mapping

from panel_content import WITHIN, Expectation, elsewhere

from gpumon.model.allocation import IDLE_LEVELS

HELD_DAY = 24 - 1 / 6 + 1 / 12
"""Hours of the last day in which owners are recorded, within the length of a window."""


def _used(line: Mapping[str, float], held: float, busy: float, idle: tuple[float, ...], kilowatts: float) -> bool:
    """Return whether a line has the use of an owner that held so many GPUs for the last day."""
    values = {"held": held, "busy": busy, "idle": sum(idle), "kWh": kilowatts, "cost of idle": sum(idle) * 2.5}
    values |= dict(zip(("no process", "no kernel", "cold"), idle, strict=True))
    return all(math.isclose(line[name], value * HELD_DAY, rel_tol=0.01) for name, value in values.items())


IDLE_COST: Mapping[str, Expectation] = {
    # Two owners held 12 GPUs for the last day, and those of now hold some for minutes.
    "GPU hours held, 7 days?": lambda content: 12 * 23.5 < content.number < 12 * 26,
    "Busy, 7 days?": lambda content: 0.3 < content.number < 0.5,
    "Idle, 7 days?": lambda content: 0.5 < content.number < 0.7,
    "Energy of held GPUs, 7 days?": lambda content: 7 * 23.5 < content.number < 7 * 26,
    "Cost, 7 days?": lambda content: 30 * 23.5 < content.number < 30 * 26,
    "Cost of idle time, 7 days?": lambda content: 17 * 23.5 < content.number < 17 * 26,
    "How many GPUs are held, busy and idle?": lambda content: (
        content.values.keys() >= {"held", "busy", *(f"idle: {level}" for level in IDLE_LEVELS)}
        and 0.1 < content.values["held"] < 70
        and 0.01 < content.values["busy"] < 70
        and all(0.01 < content.values[f"idle: {level}"] < 10 for level in ("no_kernel", "cold"))
    ),
    "Which held GPUs are idle, whose are they, and since when?": lambda content: (
        content.has(node="rack", GPU="2", job="slurm/71")
        and content.has(node="rack", GPU="3", job="slurm/72")
        and all(0.9 < line["idle"] < 1.02 and 5 < line["held for"] < 2 * WITHIN for line in content.lines)
    ),
    "Which GPUs are busy, but cold?": lambda content: (
        content.has(node="rack", GPU="3", job="slurm/72")
        and content.has(node="rack", GPU="0", job="slurm/1000")
        and len(content.lines) == 2
        and all(0.5 < line[name] < 1.02 for line in content.lines for name in ("cold", "busy"))
        and all(50 < line["power"] < 600 for line in content.lines)
    ),
    "Which owners could give back the most, 7 days?": lambda content: (
        [line["job"] for line in content.lines[:1]] == ["slurm/70"]
        and math.isclose(content.lines[0]["idle"], 6 * HELD_DAY, rel_tol=0.01)
        and math.isclose(content.lines[0]["held"], 8 * HELD_DAY, rel_tol=0.01)
        and math.isclose(content.lines[0]["cost of idle"], 15 * HELD_DAY, rel_tol=0.01)
        and content.has(namespace="ml", job="pod/ml/train")
    ),
    "What did each namespace use, 7 days?": lambda content: (
        content.column("namespace") == {"ml"} and _used(content.lines[0], 4, 3, (0.25, 0.5, 0.125), 4)
    ),
    "What did each account use, 7 days?": lambda content: (
        content.column("account") == {"physics"} and _used(content.lines[0], 8, 2, (1, 3, 2), 3)
    ),
    "What did each user use, 7 days?": lambda content: _used(content.line(user="ann"), 8, 2, (1, 3, 2), 3),
}
NOT_IDLE: Mapping[str, Expectation] = {
    "Which held GPUs are idle, whose are they, and since when?": lambda content: content.lines == [{"node": "none"}],
    "Which GPUs are busy, but cold?": lambda content: content.lines == [{"node": "none"}],
}

WATTS, SPEEDS = (220, 1300), (1e9, 900e9)
"""Lowest and highest power of a GPU that works, and bytes per second over its NVLinks."""
JOB: Mapping[str, Expectation] = {
    "On how many nodes is it?": lambda content: content.number == 3,
    "How many GPUs has it?": lambda content: content.number == 8 + 2 + 8,
    "How many of them move now?": lambda content: content.number == 8,
    "For how many is that unknown?": lambda content: content.number == 8,
    "How long ago did one last move?": lambda content: 0 < content.number < 60,
    "How much energy did it use?": elsewhere,
    "Which node stopped first?": lambda content: (
        [line["node"] for line in content.lines if "verdict" in line] == [content.lines[0]["node"]] == ["rack"]
        and content.has(node="rack", GPUs=2.0, moving=0.0, verdict=2.0)
        and content.has(node="sim-1", GPUs=8.0, moving=1.0)
        and 30 < content.lines[0]["not moved for"] < 3 * WITHIN
        and 0 < content.line(node="sim-1")["not moved for"] < 30
        and len(content.lines) == 3
    ),
    "Which share of its GPUs moves on each node?": lambda content: content.values == {"rack": 0, "sim-1": 1},
    "Which GPUs draw another power?": lambda content: (
        100 < content.values["rack GPU 1"] < 200 < WATTS[0] < content.values["median of the job"] < WATTS[1]
        and len(content.values) == 6 + 2 + 8 + 1
    ),
    "Which GPUs use their tensor cores more or less?": lambda content: (
        content.values["rack GPU 0"] == content.values["rack GPU 1"] == 0
        and all(0.2 < content.values[name] < 1 for name in ("sim-1 GPU 0", "median of the job"))
    ),
    "Which GPUs run at another clock?": lambda content: (
        0.9e9 < content.values["faulty GPU 4"] < 1.1e9 and 1.5e9 < content.values["median of the job"] < 2.1e9
    ),
    "Which GPUs exchange more or less?": lambda content: (
        content.values["rack GPU 0"] == content.values["rack GPU 1"] == 0
        and all(SPEEDS[0] < content.values[name] < SPEEDS[1] for name in ("sim-1 GPU 0", "median of the job"))
    ),
    "How far apart is their power?": lambda content: content.between(150, 1100, "spread"),
    "Which verdicts are on the job, its GPUs and its nodes?": lambda content: (
        content.has(node="rack", check="job_stalled", action="none")
        and content.has(node="faulty", GPU="3", check="gpu_lost", action="reboot")
        and bool(content.column("check") & {"ib_port_down", "ib_port_flapping"})
        and content.column("node") == {"faulty", "rack"}
    ),
}
OTHER_JOB: Mapping[str, Expectation] = {
    "Which node stopped first?": lambda content: content.lines == [{"node": "rack", "GPUs": 1.0, "moving": 0.0}],
    "Which verdicts are on the job, its GPUs and its nodes?": lambda content: (
        bool(content.lines) and not content.column("check") & {"job_stalled", "nvlink_recovering"}
    ),
}
"""Job 71 has never moved, and the verdicts on GPU 0 and on the job that stalls are not about it."""
MOVING_JOB: Mapping[str, Expectation] = {
    "How many of them move now?": lambda content: content.number == 8,
    "For how many is that unknown?": lambda content: content.number == 0,
    "Which verdicts are on the job, its GPUs and its nodes?": lambda content: (
        content.lines == [{"reason": "nothing is wrong"}]
    ),
}
MANY_GPUS: Mapping[str, Expectation] = {
    "Which GPUs draw another power?": lambda content: {"rack GPU 0", "rack GPU 1"} <= set(content.values),
}
"""There are more GPUs than are shown."""

JOB_VIEWS: tuple[tuple[Mapping[str, str], Mapping[str, Expectation]], ...] = (
    ({"job_id": "slurm/1000", "instance": "faulty|rack|sim-1"}, JOB),
    ({"job_id": "slurm/1000", "instance": "faulty|rack|sim-1|sim-2"}, MANY_GPUS),
    ({"job_id": "slurm/1000", "instance": "sim-1"}, MOVING_JOB),
    ({"job_id": "slurm/71"}, OTHER_JOB),
    (
        {"job_id": "slurm/70", "__range": "2d"},
        {"How much energy did it use?": lambda content: math.isclose(content.number, 3 * HELD_DAY, rel_tol=0.01)},
    ),
)
IDLE_COST_VIEWS: tuple[tuple[Mapping[str, str], Mapping[str, Expectation]], ...] = (
    ({"price": "2.5"}, IDLE_COST),
    ({"instance": "sim-1"}, NOT_IDLE),
)
