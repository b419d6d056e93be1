"""DASHBOARD: who holds GPUs, how much of that time they are idle, and what that costs."""

from __future__ import annotations

from dashboards.panels import GPU, JOB, NODE, UUID, Column, Dashboard, Panel, Section, graph, stat, table
from dashboards.promql import EACH_GPU, ON_NODE, series, stated
from gpumon.fleet.recording_rules import BUSY, HELD, IDLE, POWER, sum_over
from gpumon.model.allocation import IDLE_LEVELS

_DAYS = "7d"
_PER_HOUR, _PER_KWH = 3600, 3_600_000
_OWNER_COLUMNS = [
    Column(label, heading)
    for label, heading in (
        ("job_id", JOB),
        ("pod_namespace", "namespace"),
        ("account", "account"),
        ("user", "user"),
    )
]
_EACH_OWNER = ", ".join(column.source for column in _OWNER_COLUMNS)
_NO_LABEL = "n/a: no owner has this label (`jobs.labels`), or the recording rules are not loaded."


def _total(metric: str, *matchers: str, by: str = "", per: int = _PER_HOUR) -> str:
    """Return the sum of a recorded series over the last days. `per`: seconds or joules of its unit."""
    selected = f"{{{', '.join((*ON_NODE, *matchers))}}}"
    return f"sum by ({by}) ({sum_over(metric, _DAYS, selected)}) / {per}"


def _increase(metric: str, *matchers: str) -> str:
    return f"sum by ({EACH_GPU}) (increase({series(f'gpumon_gpu_{metric}_seconds_total', *matchers)}[1h]))"


_INFO = series("gpumon_gpu_allocation_info")
_IDLE = f"{_increase('idle')} / {_increase('allocated')} > 0.9"
_COLD = f"""{_increase("idle", 'level="cold"')} / {_increase("allocated")} > 0.5"""
_SINCE = f"min by ({EACH_GPU}, {_EACH_OWNER}) (min_over_time(timestamp({_INFO})[1d:2m]))"
_KNOWN = series("gpumon_gpu_allocated_seconds_total")


def _held(expression: str) -> str:
    """Return the values of GPUs for each of their owners now."""
    owners = f"group by ({EACH_GPU}, {_EACH_OWNER}) ({_INFO})"
    return f"{owners} * on ({EACH_GPU}) group_left () ({expression})"


def _uses(title: str, label: str, heading: str) -> Panel:
    """Return a table with what the owners with each value of a label used."""
    named = f'{label}!=""'
    idle = _total(IDLE, named, by=label)
    queries = [
        _total(HELD, named, by=label),
        _total(BUSY, named, by=label),
        idle,
        *(_total(IDLE, named, f'level="{level}"', by=label) for level in IDLE_LEVELS),
        _total(POWER, named, by=label, per=_PER_KWH),
        f"{idle} * $price",
    ]
    headings = ("held", "busy", "idle", *(level.replace("_", " ") for level in IDLE_LEVELS), "kWh", "cost of idle")
    columns = [Column(letter, name) for letter, name in zip("ABCDEFGH", headings, strict=True)]
    description = f"GPU hours, the most idle first. A GPU with several owners is divided among them. {_NO_LABEL}"
    return table(title, description, queries, [Column(label, heading), *columns], sort="idle", width=24, height=7)


_TOP = f"topk(20, {_total(IDLE, by=_EACH_OWNER)} > 0)"
DASHBOARD = Dashboard(
    uid="gpumon-idle",
    title="gpumon: idle and cost",
    description="Who holds GPUs, how much of that time are they idle, and what does that cost?",
    priced=True,
    sections=(
        Section(
            title="How much is held, and how much of that is wasted?",
            panels=(
                stat("GPU hours held, 7 days?", "GPU hours for which GPUs had an owner.", _total(HELD)),
                stat(
                    "Busy, 7 days?",
                    "Share of the time held in which a kernel ran. It may be cold.",
                    f"{_total(BUSY)} / ({_total(HELD)})",
                    unit="percentunit",
                ),
                stat(
                    "Idle, 7 days?",
                    "Share of the time held without a process, without a kernel, or with kernels that hardly work.",
                    f"{_total(IDLE)} / ({_total(HELD)})",
                    unit="percentunit",
                ),
                stat(
                    "Energy of held GPUs, 7 days?",
                    "In the time for which they were held.",
                    _total(POWER, per=_PER_KWH),
                    unit="kwatth",
                ),
                stat(
                    "Cost, 7 days?", "GPU hours held times the price of one: the variable.", f"{_total(HELD)} * $price"
                ),
                stat("Cost of idle time, 7 days?", "Idle GPU hours times the price.", f"{_total(IDLE)} * $price"),
                graph(
                    "How many GPUs are held, busy and idle?",
                    "Means of five minutes. Idle by level; the time that is cold is busy too.",
                    {
                        "held": f"sum({series(HELD)})",
                        "busy": f"sum({series(BUSY)})",
                        "idle: {{level}}": f"sum by (level) ({series(IDLE)})",
                    },
                    minimum=0,
                    width=24,
                ),
            ),
        ),
        Section(
            title="Which GPUs could be given back now?",
            panels=(
                table(
                    "Which held GPUs are idle, whose are they, and since when?",
                    "Idle for more than nine tenths of the time of the last hour that it was held. Held for: at most a "
                    "day is read.",
                    [
                        stated(_held(_IDLE), "instance", "none", _KNOWN),
                        f"time() - {_SINCE} and on ({EACH_GPU}, {_EACH_OWNER}) {_held(_IDLE)}",
                    ],
                    [
                        Column("instance", NODE),
                        Column("gpu", GPU),
                        *_OWNER_COLUMNS,
                        Column("A", "idle", unit="percentunit"),
                        Column("B", "held for", unit="s"),
                        Column("uuid", UUID),
                    ],
                    sort="held for",
                    width=24,
                ),
                table(
                    "Which GPUs are busy, but cold?",
                    "For more than half of the time of the last hour that it was held, kernels ran with little power "
                    "and hardly any memory access, as when they wait for another rank.",
                    [
                        stated(_held(_COLD), "instance", "none", _KNOWN),
                        f"{_increase('busy')} / {_increase('observed')} and on ({EACH_GPU}) ({_COLD})",
                        f"max by ({EACH_GPU}) ({series('gpumon_gpu_power_watts')}) and on ({EACH_GPU}) ({_COLD})",
                    ],
                    [
                        Column("instance", NODE),
                        Column("gpu", GPU),
                        *_OWNER_COLUMNS,
                        Column("A", "cold", unit="percentunit"),
                        Column("B", "busy", unit="percentunit"),
                        Column("C", "power", unit="watt"),
                        Column("uuid", UUID),
                    ],
                    sort="cold",
                    width=24,
                ),
            ),
        ),
        Section(
            title="Who wastes the most?",
            panels=(
                table(
                    "Which owners could give back the most, 7 days?",
                    "The 20 owners with the most idle GPU hours. An owner whose names are no labels has an empty line.",
                    [
                        _TOP,
                        f"{_total(HELD, by=_EACH_OWNER)} and on ({_EACH_OWNER}) {_TOP}",
                        f"({_TOP}) * $price",
                    ],
                    [*_OWNER_COLUMNS, Column("A", "idle"), Column("B", "held"), Column("C", "cost of idle")],
                    sort="idle",
                    width=24,
                ),
                _uses("What did each namespace use, 7 days?", "pod_namespace", "namespace"),
                _uses("What did each account use, 7 days?", "account", "account"),
                _uses("What did each user use, 7 days?", "user", "user"),
            ),
        ),
    ),
)
