"""DASHBOARD: one job over all its nodes: which of its GPUs move, and which differ from the others."""

from __future__ import annotations

from functools import partial

from dashboards.panels import GPU, NODE, UUID, Column, Dashboard, Panel, Section, graph, stat, table
from dashboards.promql import EACH_GPU, EACH_NODE, MAX_SERIES, RANGE, biggest, rate, series, share_of_time, stated
from gpumon.fleet.recording_rules import POWER, sum_over
from gpumon.health.verdict import WARN

_JOB = ('job_id="$job_id"', 'job_id!=""')
"""The owners whose names are no labels have an empty id, as the variable has if there is no job."""
_HELD = series("gpumon_gpu_allocation_info", *_JOB)
_HELD_LAST = f"last_over_time({_HELD}[1h])"
"""GPUs that it held in the last hour. The owner of a GPU that is lost is unknown."""
_GPUS, _MOVING = series("gpumon_job_gpus", *_JOB), series("gpumon_job_moving_ratio", *_JOB)
_LAST_MOVED = series("gpumon_job_last_moving_timestamp_seconds", *_JOB)
_KNOWN = f"({_GPUS} and on ({EACH_NODE}) {_MOVING})"
_JOULES_PER_KWH = 3_600_000
_NO_RANK = (
    "Counters name no guilty rank: a GPU that waits and the one that is waited for look alike. `gpumon explain JOB` "
    "on a node can name it."
)
_verdict = partial(series, "gpumon_health_check_info")
_VERDICT = f"{EACH_GPU}, check, reason, action"
_WRONG = " or ".join(
    (
        _verdict(*_JOB),
        f"""{_verdict('uuid=""', 'job_id=""')} and on ({EACH_NODE}) {_GPUS}""",
        f"""{_verdict('uuid!=""')} and on (cluster, instance, uuid) {_HELD_LAST}""",
    )
)
"""Verdicts about the job, its nodes and its GPUs."""


def _of_job(expression: str) -> str:
    """Return the values of the GPUs that the job holds at that time."""
    return f"({biggest(EACH_GPU, expression)} and on (cluster, instance, uuid) {_HELD})"


_WATTS = _of_job(series("gpumon_gpu_power_watts"))
_TRAFFIC = f"{rate('gpumon_gpu_nvlink_receive_bytes_total')} + {rate('gpumon_gpu_nvlink_transmit_bytes_total')}"


def _odd_ones(title: str, description: str, expression: str, unit: str) -> Panel:
    """Return a graph of the GPUs of the job that differ the most, and of the median of all its GPUs."""
    values = _of_job(expression)
    median = f"quantile(0.5, {values})"
    distance = f"abs({values} - on () group_left () {median})"
    return graph(
        title,
        f"{description} Shows the {MAX_SERIES} GPUs of the job farthest from the median at each time. {_NO_RANK}",
        {
            "{{instance}} GPU {{gpu}}": f"{values} and topk({MAX_SERIES}, {distance})",
            "median of the job": median,
        },
        unit=unit,
        minimum=0,
    )


DASHBOARD = Dashboard(
    uid="gpumon-job",
    title="gpumon: job",
    description=f"Does one job move on all its nodes, and which of its GPUs differ from the others? {_NO_RANK}",
    one_job=True,
    sections=(
        Section(
            title="Does it move?",
            panels=(
                stat(
                    "On how many nodes is it?",
                    "Nodes whose agents answer. GPUs that it shares, and MIG instances, are not counted.",
                    f"count({_GPUS})",
                ),
                stat("How many GPUs has it?", "GPUs of these nodes that it holds alone.", f"sum({_GPUS})"),
                stat(
                    "How many of them move now?",
                    "They use their memory, tensor cores or NVLinks, as while the job moved.",
                    f"sum({_MOVING} * {_GPUS})",
                ),
                stat(
                    "For how many is that unknown?",
                    "GPUs of nodes on which a GPU of the job cannot be read.",
                    f"sum({_GPUS}) - (sum({_KNOWN}) or 0 * sum({_GPUS}))",
                    colors={None: "green", 1: "purple"},
                ),
                stat(
                    "How long ago did one last move?",
                    "The last time at which any of its GPUs was moving, on any node.",
                    f"time() - max({_LAST_MOVED})",
                    unit="s",
                ),
                stat(
                    "How much energy did it use?",
                    "In the time range shown, in steps of five minutes, by the recording rules.",
                    f"sum({sum_over(POWER, RANGE, series(POWER, *_JOB).removeprefix(POWER))}) / {_JOULES_PER_KWH}",
                    unit="kwatth",
                ),
                table(
                    "Which node stopped first?",
                    "Its GPUs have not moved for the longest time: begin there. No verdict: nothing shows that the job "
                    f"hangs. {_NO_RANK}",
                    [
                        f"time() - {biggest(EACH_NODE, _LAST_MOVED)}",
                        biggest(EACH_NODE, _GPUS),
                        biggest(EACH_NODE, _MOVING),
                        biggest(EACH_NODE, series("gpumon_health_check", 'check="job_stalled"', *_JOB)),
                    ],
                    [
                        Column("instance", NODE),
                        Column("A", "not moved for", unit="s"),
                        Column("B", "GPUs"),
                        Column("C", "moving", unit="percentunit"),
                        Column("D", "verdict", words={WARN: ("stalled", "orange")}),
                    ],
                    sort="not moved for",
                ),
                graph(
                    "Which share of its GPUs moves on each node?",
                    f"Shows the {MAX_SERIES} lowest series at each time: select nodes to see others.",
                    {"{{instance}}": f"bottomk({MAX_SERIES}, {biggest(EACH_NODE, _MOVING)})"},
                    unit="percentunit",
                    minimum=0,
                    maximum=1,
                ),
            ),
        ),
        Section(
            title="Does one of its GPUs differ from the others?",
            panels=(
                _odd_ones(
                    "Which GPUs draw another power?",
                    "A GPU that waits draws less than one that works.",
                    series("gpumon_gpu_power_watts"),
                    "watt",
                ),
                _odd_ones(
                    "Which GPUs use their tensor cores more or less?",
                    "Share of time. Hopper and later.",
                    share_of_time("gpumon_gpu_tensor_active_seconds_total"),
                    "percentunit",
                ),
                _odd_ones(
                    "Which GPUs run at another clock?",
                    "Clock of the multiprocessors. A GPU that is throttled slows the whole job down.",
                    series("gpumon_gpu_clock_hertz", 'domain="sm"'),
                    "hertz",
                ),
                _odd_ones(
                    "Which GPUs exchange more or less?", "Payload sent and received over NVLink.", _TRAFFIC, "Bps"
                ),
                graph(
                    "How far apart is their power?",
                    "Highest minus lowest power of the GPUs of the job.",
                    {"spread": f"max({_WATTS}) - min({_WATTS})"},
                    unit="watt",
                    minimum=0,
                    width=24,
                    height=6,
                ),
            ),
        ),
        Section(
            title="Is anything wrong with its GPUs or nodes?",
            panels=(
                table(
                    "Which verdicts are on the job, its GPUs and its nodes?",
                    "One line for each fault that no other fault explains. Without a GPU it is about the job or its "
                    "node. GPUs are those that it held in the last hour.",
                    [stated(biggest(_VERDICT, _WRONG), "reason", "nothing is wrong", _GPUS)],
                    [
                        Column("instance", NODE),
                        Column("gpu", GPU),
                        *(Column(name, name) for name in ("check", "reason", "action")),
                        Column("uuid", UUID),
                    ],
                    width=24,
                ),
            ),
        ),
    ),
)
