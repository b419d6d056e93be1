"""DASHBOARD: the fleet of all nodes."""

from __future__ import annotations

from dashboards.panels import (
    GPU,
    JOB,
    LEVELS,
    NO_ANSWER,
    NODE,
    OTHERS,
    UUID,
    Column,
    Dashboard,
    Section,
    Words,
    bars,
    graph,
    matrix,
    stat,
    table,
    timeline,
)
from dashboards.promql import (
    EACH_GPU,
    EACH_NODE,
    FIRING,
    KERNEL_LOG,
    MAX_SERIES,
    RULES_WORK,
    TARGETS,
    alerts,
    biggest,
    by_name,
    count,
    number_or_no_answer,
    rate,
    series,
    share_of_time,
    stated,
)
from gpumon.fleet.recording_rules import FAILURES, FAULT_SECONDS, GPUS, HEALTHY_SECONDS

STATES: Words = {NO_ANSWER: ("no answer", "gray"), **LEVELS}
_SHARE = {"unit": "percentunit", "minimum": 0, "maximum": 1, "width": 3}
_GOOD = {None: "red", 0.95: "orange", 0.99: "green"}

NO_FAILURE = -1
"""Value of the hours between failures if there was no failure. Without a healthy hour it is 0."""
_PROCESSES = series("gpumon_gpu_processes")
_HEALTHY = f"({series('gpumon_gpu_health')} != 1 < 3)"
_HEALTH = biggest(EACH_NODE, series("gpumon_node_health"))
_STATE = f"{_HEALTH} or {biggest(EACH_NODE, f'{TARGETS} == 0')} {NO_ANSWER}"
"""The worst verdict of each node, or NO_ANSWER."""
_VERDICT = f"{EACH_GPU}, check, device, port, job_id"
_REASON = (
    f"{biggest(f'{_VERDICT}, code, action, reason', series('gpumon_health_check_info'))} "
    f"* on ({_VERDICT}) group_left () {biggest(_VERDICT, series('gpumon_health_check'))}"
)
"""The level of each verdict, with its reason."""
_NOT_OK = f'({_STATE}) != 0 or label_replace(0 * group({_HEALTH} == 0), "instance", "{OTHERS}", "", "")'
"""The worst verdict of each node that has one or does not answer, and 0 for all others together."""
_XID_AT = series("gpumon_gpu_xid_last_timestamp_seconds")
_XIDS = f"({_XID_AT} > time() - 86400)"
_BELOW_LIMIT = f"{series('gpumon_gpu_temperature_slowdown_celsius')} - {series('gpumon_gpu_temperature_celsius')}"
_MARGINS = f"{series('gpumon_gpu_thermal_margin_celsius')} or {_BELOW_LIMIT}"
_MARGIN = f"bottomk({MAX_SERIES}, min by ({EACH_NODE}) ({_MARGINS}))"
_THROTTLED = series("gpumon_gpu_clock_event_seconds_total", 'reason=~"hw_thermal|sw_thermal"')
_REMAPPED = series("gpumon_gpu_rows_remapped_total", 'cause="uncorrectable"')
_ROWS = f"sum by ({EACH_GPU}) ({_REMAPPED})"
_REMAP_FAILED = biggest(EACH_GPU, series("gpumon_gpu_row_remap_failed"))
_UNCORRECTED = series("gpumon_gpu_ecc_errors_lifetime_total", 'severity="uncorrected"')
_SERIAL = biggest(f"{EACH_GPU}, serial", series("gpumon_gpu_info"))
_MAINTENANCE = series("gpumon_maintenance_end_timestamp_seconds")
_RELEASED = f"count by ({EACH_NODE}) ({series('gpumon_gpu_released')} == 1)"


def _of_worn_boards(expression: str) -> str:
    """Return an expression by GPU for boards with rows remapped for uncorrectable errors, with their serial numbers."""
    worn = f"({_ROWS} > 0 or {_REMAP_FAILED} == 1)"
    return f"({expression} and on ({EACH_GPU}) {worn}) * on ({EACH_GPU}) group_left (serial) {_SERIAL}"


_ALERT = f"alertname, severity, device, port, job_id, {EACH_GPU}"
_ACTIVE_SINCE = alerts(metric="ALERTS_FOR_STATE")
_BUSY = f"rate({series('gpumon_gpu_busy_seconds_total')}[1h]) / rate({series('gpumon_gpu_observed_seconds_total')}[1h])"
_MEASURED = series("gpumon_gpu_busy_seconds_total")
_HELD_IDLE = f"(({_BUSY}) < 0.05 and {series('gpumon_gpu_utilization_ratio')} and min_over_time({_PROCESSES}[1h]) > 0)"


def _hours(state: str, window: str) -> str:
    """Return the share of the expected GPU-hours in which GPUs were in a state, of all GPUs that should exist."""
    hours, expected = (f"sum(sum_over_time({series(f'{GPUS}:{name}')}[{window}]))" for name in (state, "expected"))
    return f"{hours} / {expected}"


def _sum(state: str) -> str:
    """Return the number of GPUs in a state; NaN if no node that should have GPUs answers."""
    return number_or_no_answer(f"sum({series(f'{GPUS}:{state}')})", series(f"{GPUS}:expected"))


def _versions(what: str, metric: str, label: str) -> str:
    """Return 1 for each node and value of a label of an info series, in the labels `what` and `value`."""
    nodes = f"group by ({label}, {EACH_NODE}) ({series(metric)})"
    return f'label_replace(label_replace({nodes}, "value", "$1", "{label}", "(.*)"), "what", "{what}", "", "")'


_VERSIONS = " or ".join(
    _versions(*row)
    for row in (
        ("gpumon", "gpumon_build_info", "version"),
        ("driver", "gpumon_driver_info", "driver"),
        ("VBIOS", "gpumon_gpu_info", "vbios"),
        ("GPU", "gpumon_gpu_info", "name"),
    )
)


def _quantile(quantile: float) -> str:
    return f"quantile({quantile}, {share_of_time('gpumon_gpu_busy_seconds_total')})"


DASHBOARD = Dashboard(
    uid="gpumon-fleet",
    title="gpumon: fleet",
    description="Is the fleet good? Where are GPUs lost, which nodes are bad, and what must be done?",
    sections=(
        Section(
            title="Is it good?",
            panels=(
                stat(
                    "Healthy, 24 hours?",
                    "Share of the expected GPU-hours in which the GPU was healthy. Hours without an answer "
                    "count as not healthy.",
                    _hours("healthy", "1d"),
                    colors=_GOOD,
                    **_SHARE,
                ),
                stat(
                    "Healthy, 7 days?",
                    "The same share over 7 days.",
                    _hours("healthy", "7d"),
                    colors=_GOOD,
                    **_SHARE,
                ),
                stat(
                    "In use, 24 hours?",
                    "Share of the expected GPU-hours in which a process was on the GPU.",
                    _hours("busy", "1d"),
                    **_SHARE,
                ),
                stat("In use, 7 days?", "The same share over 7 days.", _hours("busy", "7d"), **_SHARE),
                stat(
                    "Nodes unfit for work?",
                    "Nodes with a fail verdict: the node or one of its GPUs is unfit for work.",
                    count(f"{series('gpumon_node_health')} == 3", series("gpumon_node_health")),
                    colors={None: "green", 1: "red"},
                    width=3,
                ),
                stat(
                    "Nodes that do not answer?",
                    "Agents that Prometheus cannot scrape. Whether their GPUs work is unknown.",
                    count(f"{TARGETS} == 0", TARGETS),
                    colors={None: "green", 1: "red"},
                    width=3,
                ),
                stat(
                    "Hours between failures?",
                    "Hours that nodes were healthy or warned in 7 days, divided by how often a node began to "
                    "fail. Hours in steps of 5 minutes, failures at each evaluation of the rules. n/a: no verdict.",
                    f"(sum({series(HEALTHY_SECONDS)}) or 0 * sum({series(FAILURES)})) / 3600 / "
                    f"(sum({series(FAILURES)}) > 0) or on () {NO_FAILURE} * group({series(HEALTHY_SECONDS)})",
                    words={NO_FAILURE: ("no failure", "green")},
                    unit="h",
                    width=3,
                ),
                stat(
                    "Simulated nodes?",
                    "Agents that monitor a simulated node, not hardware.",
                    f"sum({series('gpumon_simulated')})",
                    colors={None: "text", 1: "purple"},
                    width=3,
                ),
            ),
        ),
        Section(
            title="What is wrong?",
            panels=(
                bars(
                    "Where are GPUs lost between installed and in use?",
                    "Expected: configured, accepted or learned; the sum of healthy, failed and unknown. In use: with a "
                    "process. Unknown: no check can judge these now, for example because their agent does not answer.",
                    {
                        "expected": _sum("expected"),
                        "answering": _sum("up"),
                        "healthy": _sum("healthy"),
                        "healthy, in use": number_or_no_answer(
                            count(f"{_PROCESSES} > 0 and on ({EACH_GPU}) {_HEALTHY}", _PROCESSES),
                            series(f"{GPUS}:expected"),
                        ),
                        "failed": _sum("failed"),
                        "unknown": _sum("unknown"),
                    },
                    minimum=0,
                    width=8,
                ),
                table(
                    "What is wrong, and what must be done?",
                    "One line for each fault that no other fault explains, the worst first.",
                    [
                        stated(
                            _REASON, "reason", "nothing, as far as nodes answer", f"{series('gpumon_node_health')} != 1"
                        )
                    ],
                    [
                        Column("A", "severity", words=LEVELS),
                        Column("instance", NODE),
                        Column("gpu", GPU),
                        Column("device", "port of"),
                        Column("job_id", JOB),
                        Column("reason", "reason"),
                        Column("action", "action"),
                        Column("check", "check"),
                        Column("uuid", UUID),
                    ],
                    sort="severity",
                    width=16,
                ),
                matrix(
                    "Which check is bad on which node?",
                    "Nodes with a verdict, or without an answer, the worst first. `worst` is the worst verdict of the "
                    "node. No color: the check is ok there, or there is no answer.",
                    by_name(
                        f"{biggest(f'{EACH_NODE}, check', series('gpumon_health_check'))} or "
                        f'label_replace({_NOT_OK}, "check", "worst", "", "")'
                    ),
                    Column("instance", NODE),
                    columns="check",
                    words=STATES,
                    sort="worst",
                    width=24,
                ),
                table(
                    "Which Xids occurred, 24 hours?",
                    "GPUs and nodes with each Xid, the most frequent first. `gpumon xid CODE` explains it. One code on "
                    "many nodes: look for a job, a driver or firmware that they share.",
                    [
                        stated(f"count by (xid) ({_XIDS})", "xid", "none", KERNEL_LOG),
                        f"count by (xid) (group by ({EACH_NODE}, xid) ({_XIDS}))",
                        f"time() - max by (xid) ({_XIDS})",
                    ],
                    [
                        Column("xid", "Xid"),
                        Column("A", "GPUs"),
                        Column("B", "nodes"),
                        Column("C", "last", unit="s"),
                    ],
                    sort="GPUs",
                    width=8,
                ),
                table(
                    "Which nodes are the hottest?",
                    "The 20 nodes with the smallest margin below the temperature at which the driver slows a GPU down. "
                    "Slowed: longest share of the last hour of a GPU. Neighbours in one rack: air or water.",
                    [
                        _MARGIN,
                        f"max by ({EACH_NODE}) (rate({_THROTTLED}[1h])) and on ({EACH_NODE}) {_MARGIN}",
                    ],
                    [
                        Column("instance", NODE),
                        Column("A", "margin", unit="celsius"),
                        Column("B", "slowed", unit="percentunit"),
                    ],
                    sort="margin",
                    lowest_first=True,
                    width=8,
                ),
                table(
                    "Which nodes are in maintenance or released?",
                    "No alert of a node in maintenance pages. A GPU that is released is not monitored.",
                    [
                        stated(
                            f"{biggest(EACH_NODE, f'{_MAINTENANCE} > time()')} - time()",
                            "instance",
                            "none",
                            f"{_MAINTENANCE} unless on () {_RELEASED}",
                        ),
                        _RELEASED,
                    ],
                    [Column("instance", NODE), Column("A", "ends in", unit="s"), Column("B", "GPUs released")],
                    sort="ends in",
                    width=8,
                ),
                timeline(
                    "How has each node been?",
                    "The worst verdict of each node. Grey: its agent did not answer.",
                    _STATE,
                    "{{instance}}",
                    STATES,
                ),
                table(
                    "Which alerts fire, and for how long?",
                    "gpumon's alerts that fire in Prometheus. Age: time since the condition began.",
                    [
                        stated(
                            f"time() - {biggest(_ALERT, _ACTIVE_SINCE)} and on ({_ALERT}) {alerts(FIRING)}",
                            "alertname",
                            "none fires",
                            RULES_WORK,
                        )
                    ],
                    [
                        Column("instance", NODE),
                        Column("gpu", GPU),
                        Column("alertname", "alert"),
                        Column("severity", "severity"),
                        Column("A", "age", unit="s"),
                        Column("uuid", UUID),
                    ],
                    sort="age",
                ),
            ),
        ),
        Section(
            title="Which nodes cost the most?",
            panels=(
                table(
                    "Which nodes fail again and again?",
                    "In 7 days: how often the node began to fail, and how long it failed, in steps of 5 minutes.",
                    [
                        stated(
                            f"sum by ({EACH_NODE}) ({series(FAILURES)}) > 0",
                            "instance",
                            "none",
                            series(HEALTHY_SECONDS),
                        ),
                        f"sum by ({EACH_NODE}) ({series(FAULT_SECONDS)}) > 0",
                    ],
                    [Column("instance", NODE), Column("A", "failures"), Column("B", "failed for", unit="s")],
                    sort="failed for",
                ),
                table(
                    "Which boards wear out?",
                    "Boards with rows remapped for uncorrectable errors: candidates for a replacement. First those "
                    "with a failed remapping or many uncorrected errors.",
                    [
                        stated(_of_worn_boards(_ROWS), "instance", "none", series("gpumon_gpu_rows_remapped_total")),
                        _of_worn_boards(_REMAP_FAILED),
                        _of_worn_boards(f"sum by ({EACH_GPU}) ({_UNCORRECTED})"),
                    ],
                    [
                        Column("instance", NODE),
                        Column("gpu", GPU),
                        Column("serial", "serial"),
                        Column("A", "rows remapped"),
                        Column("B", "remap failed", words={0: ("no", "green"), 1: ("yes", "red")}),
                        Column("C", "uncorrected errors"),
                        Column("uuid", UUID),
                    ],
                    sort="rows remapped",
                ),
                table(
                    "Do all nodes run the same versions?",
                    "Number of nodes by version, and one of them. A version on few nodes is drift.",
                    [f"count by (what, value) ({_VERSIONS})", f"topk by (what, value) (1, {_VERSIONS})"],
                    [Column("what", "of"), Column("value", "version"), Column("A", "nodes"), Column("instance", NODE)],
                ),
            ),
        ),
        Section(
            title="Is it used?",
            panels=(
                graph(
                    "How is the load spread over the GPUs?",
                    "Share of time in which a kernel ran, of the median GPU and of those near the ends. One busy tenth "
                    "and an idle median: most GPUs wait. A kernel may use a small part of the GPU.",
                    {
                        "most busy tenth": _quantile(0.9),
                        "median": _quantile(0.5),
                        "least busy tenth": _quantile(0.1),
                    },
                    unit="percentunit",
                    minimum=0,
                    maximum=1,
                ),
                table(
                    "Which GPUs are held but idle?",
                    "A process has been on the GPU for an hour, and kernels ran less than 5 % of the time. A GPU with "
                    "MIG has no such time. n/a: no selected GPU has it.",
                    [
                        stated(biggest(EACH_GPU, _HELD_IDLE), "instance", "none", _MEASURED),
                        f"{biggest(EACH_GPU, series('gpumon_gpu_memory_used_bytes'))} and on ({EACH_GPU}) {_HELD_IDLE}",
                    ],
                    [
                        Column("instance", NODE),
                        Column("gpu", GPU),
                        Column("A", "busy", unit="percentunit"),
                        Column("B", "memory used", unit="bytes"),
                        Column("uuid", UUID),
                    ],
                ),
                graph(
                    "How much power do the GPUs draw?",
                    "Mean between points, from the energy counters, of all selected GPUs.",
                    {"all GPUs": f"sum({rate('gpumon_gpu_energy_joules_total')})"},
                    unit="watt",
                    minimum=0,
                    width=18,
                    height=6,
                ),
                stat(
                    "Energy, 24 hours?",
                    "Energy of all selected GPUs in 24 hours, from the energy counters.",
                    f"sum(increase({series('gpumon_gpu_energy_joules_total')}[1d]))",
                    unit="joule",
                    width=6,
                    height=6,
                ),
            ),
        ),
    ),
)
