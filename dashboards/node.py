"""DASHBOARD: one node."""

from __future__ import annotations

from dashboards.panels import (
    GPU,
    JOB,
    LEVELS,
    NEAREST_GPU,
    NO_ANSWER,
    NONE,
    P_STATES,
    UUID,
    YES_NO,
    Column,
    Dashboard,
    Section,
    graph,
    increments,
    matrix,
    stat,
    table,
    timeline,
)
from dashboards.promql import (
    EACH_GPU,
    EACH_NODE,
    KERNEL_LOG,
    biggest,
    increase,
    number_or_zero,
    rate,
    recent_xids,
    series,
    share_of_time,
    stated,
)

EACH = "GPU {{gpu}}"
_SHARE = {"unit": "percentunit", "minimum": 0, "maximum": 1}
_PORT = f"{EACH_NODE}, device, port"
_MAINTENANCE_END = series("gpumon_maintenance_end_timestamp_seconds")
_ACTIVE = series("gpumon_gpu_clock_event_active", 'reason!="idle"')


def _each(metric: str) -> str:
    return biggest(EACH_GPU, series(metric))


_LOST = f"{series('gpumon_gpu_up')} == 0"
NO_LINKS = -2
"""Value of a GPU that answers and has no links."""
_WITHOUT_LINKS = f"({_each('gpumon_gpu_up')} == 1 unless on ({EACH_GPU}) {series('gpumon_nvlink_up')})"
_NO_LINK = f"{biggest(EACH_GPU, _LOST)} {NO_ANSWER} or {NO_LINKS} * {_WITHOUT_LINKS}"
_LEVEL = biggest(f"{EACH_GPU}, check", series("gpumon_health_check", 'gpu!=""'))
_INFO = biggest(f"{EACH_GPU}, check, action", series("gpumon_health_check_info"))


def _window(name: str, condition: str) -> str:
    return f'label_replace(max ({condition}), "window", "{name}", "", "")'


MARGIN = (
    f"({series('gpumon_gpu_thermal_margin_celsius')} or "
    f"({series('gpumon_gpu_temperature_slowdown_celsius')} - {series('gpumon_gpu_temperature_celsius')}))"
)
"""The driver's margin, else the distance of the core temperature from the slowdown temperature."""

DASHBOARD = Dashboard(
    uid="gpumon-node",
    title="gpumon: node",
    description="How is each GPU of this node, what must be done, and what happened when?",
    one_node=True,
    sections=(
        Section(
            title="Is this node fit for work?",
            panels=(
                stat(
                    "Fit for work?",
                    "The worst verdict of the node. fail: unfit for work.",
                    biggest(EACH_NODE, series("gpumon_node_health")),
                    words=LEVELS,
                ),
                stat("GPUs expected?", "Configured, accepted or learned.", f"max({series('gpumon_gpus_expected')})"),
                stat("GPUs that answer?", "GPUs that the driver can read.", f"sum({series('gpumon_gpu_up')})"),
                stat(
                    "Does the driver answer?",
                    "The last poll reached the driver.",
                    f"max({series('gpumon_nvml_up')})",
                    words=YES_NO,
                ),
                stat(
                    "Age of the readings?",
                    "Time since the last complete poll, with Prometheus' clock.",
                    f"max(time() - {series('gpumon_snapshot_timestamp_seconds')})",
                    unit="s",
                    colors={None: "green", 30: "orange", 120: "red"},
                ),
                stat(
                    "In maintenance until?",
                    "No alert pages until then.",
                    number_or_zero(f"1000 * max({_MAINTENANCE_END} > time())", _MAINTENANCE_END),
                    unit="dateTimeFromNow",
                    words={0: ("no maintenance", "text")},
                ),
                table(
                    "How is each GPU?",
                    "Readings of a GPU that does not answer are n/a; its worst verdict and the action for it remain.",
                    [
                        _each("gpumon_gpu_health"),
                        f"topk by ({EACH_GPU}) (1, {_LEVEL} * on ({EACH_GPU}, check) group_left (action) {_INFO})",
                        biggest(EACH_GPU, MARGIN),
                        *(
                            _each(f"gpumon_gpu_{name}")
                            for name in ("power_watts", "utilization_ratio", "memory_used_bytes", "processes")
                        ),
                    ],
                    [
                        Column("gpu", GPU),
                        Column("A", "verdict", words=LEVELS),
                        Column("action", "do"),
                        Column("C", "margin", unit="celsius", colors={None: "red", 0: "orange", 5: "text"}),
                        Column("D", "power", unit="watt"),
                        Column("E", "time busy", unit="percentunit"),
                        Column("F", "memory used", unit="bytes"),
                        Column("G", "processes"),
                        Column("uuid", UUID),
                    ],
                    height=9,
                ),
                table(
                    "Why is it so, and what must be done?",
                    "One line for each fault that no other fault explains, about the node, a GPU or a port.",
                    [
                        stated(
                            biggest(
                                f"{EACH_GPU}, device, port, job_id, check, reason, action",
                                series("gpumon_health_check_info"),
                            ),
                            "reason",
                            "nothing is wrong",
                            f"{series('gpumon_node_health')} != 1",
                        )
                    ],
                    [
                        Column("gpu", GPU),
                        Column("device", "port of"),
                        Column("job_id", JOB),
                        Column("check", "check"),
                        Column("reason", "reason"),
                        Column("action", "action"),
                        Column("uuid", UUID),
                    ],
                    height=9,
                ),
            ),
        ),
        Section(
            title="What happened when?",
            panels=(
                timeline(
                    "How has each GPU been?",
                    "The worst verdict about each GPU.",
                    _each("gpumon_gpu_health"),
                    EACH,
                    LEVELS,
                ),
                timeline(
                    "Which windows were open?",
                    "When alerts did not page, the driver was released, or the agent's own probe loaded the GPUs.",
                    " or ".join(
                        (
                            _window("maintenance", f"{_MAINTENANCE_END} > bool time()"),
                            _window("release", f"{series('gpumon_release_end_timestamp_seconds')} > bool time()"),
                            _window("probe", series("gpumon_probe_allreduce_running")),
                        )
                    ),
                    "{{window}}",
                    {0: ("no", "transparent"), 1: ("yes", "blue")},
                ),
                timeline(
                    "Which Xids occurred?",
                    "Each Xid is shown for 5 minutes. `gpumon xid CODE` explains a code.",
                    recent_xids(f"{EACH_GPU}, xid"),
                    f"{EACH} Xid {{{{xid}}}}",
                    {0: NONE, 1: ("Xid", "red")},
                    known=KERNEL_LOG,
                ),
                increments(
                    "Were there memory errors?",
                    "New ECC errors between points.",
                    increase("gpumon_gpu_ecc_errors_total", f"{EACH_NODE}, gpu, uuid, severity, location"),
                    f"{EACH} {{{{severity}}}} {{{{location}}}}",
                    series("gpumon_gpu_ecc_errors_total"),
                ),
                timeline(
                    "Why were clocks reduced?",
                    "Reasons other than idle. sw_power_cap is common under load; hw_slowdown, hw_thermal and "
                    "hw_power_brake are not.",
                    f"{biggest(f'{EACH_GPU}, reason', _ACTIVE)} == 1",
                    f"{EACH} {{{{reason}}}}",
                    {0: NONE, 1: ("reduced", "orange")},
                    known=_ACTIVE,
                ),
                timeline(
                    "In which performance state was each GPU?",
                    "P0 is the highest performance, P8 is common for an idle GPU.",
                    _each("gpumon_gpu_performance_state"),
                    EACH,
                    P_STATES,
                ),
            ),
        ),
        Section(
            title="What do the GPUs do?",
            panels=(
                graph(
                    "How long do kernels run?",
                    "Share of time in which at least one kernel ran: a small kernel counts like a big one.",
                    {EACH: share_of_time("gpumon_gpu_busy_seconds_total")},
                    **_SHARE,
                ),
                graph(
                    "How much of the GPU is used?",
                    "Share of multiprocessors with work, averaged over time. Hopper and later.",
                    {EACH: share_of_time("gpumon_gpu_sm_active_seconds_total")},
                    **_SHARE,
                ),
                graph(
                    "How much memory is used?",
                    "Share of the GPU's memory that is allocated.",
                    {EACH: f"{series('gpumon_gpu_memory_used_bytes')} / {series('gpumon_gpu_memory_total_bytes')}"},
                    **_SHARE,
                ),
                graph(
                    "How near is the power limit?",
                    "Power divided by the enforced limit. Near 100 % the limit reduces clocks.",
                    {EACH: f"{series('gpumon_gpu_power_watts')} / {series('gpumon_gpu_power_limit_watts')}"},
                    unit="percentunit",
                    minimum=0,
                ),
                graph(
                    "How hot are the GPUs?",
                    "Core temperature. Limits differ between boards: compare the margin.",
                    {EACH: series("gpumon_gpu_temperature_celsius")},
                    unit="celsius",
                ),
                graph(
                    "How near is the thermal limit?",
                    "Margin to slowdown: the driver's, else slowdown threshold minus core temperature.",
                    {EACH: MARGIN},
                    unit="celsius",
                ),
            ),
        ),
        Section(
            title="Are its links up?",
            panels=(
                matrix(
                    "Which NVLinks are up?",
                    "From /metrics/links, which the shipped configuration scrapes once a minute. n/a: the GPU has no "
                    "links, or MIG disables them.",
                    f"{biggest(f'{EACH_GPU}, link', series('gpumon_nvlink_up'))} or "
                    f'label_replace({_NO_LINK}, "link", "0", "", "")',
                    Column("gpu", GPU),
                    columns="link",
                    words={
                        NO_LINKS: ("n/a", "gray"),
                        NO_ANSWER: ("no answer", "gray"),
                        0: ("down", "red"),
                        1: ("up", "green"),
                    },
                ),
                table(
                    "How are the ports?",
                    "Ports with the role fabric connect the jobs of several nodes; only they fail a node.",
                    [
                        biggest(f"{_PORT}, role, link_layer, gpu", series("gpumon_infiniband_port_info")),
                        biggest(_PORT, series("gpumon_infiniband_port_up")),
                        biggest(_PORT, series("gpumon_infiniband_port_speed_bytes_per_second")),
                    ],
                    [
                        Column("device", "device"),
                        Column("port", "port"),
                        Column("role", "role"),
                        Column("link_layer", "network"),
                        Column("gpu", NEAREST_GPU),
                        Column("B", "up", words=YES_NO),
                        Column("C", "speed", unit="Bps"),
                    ],
                ),
                graph(
                    "How much do the GPUs exchange?",
                    "Payload of all NVLinks of a GPU, received.",
                    {EACH: rate("gpumon_gpu_nvlink_receive_bytes_total")},
                    unit="Bps",
                    minimum=0,
                ),
                graph(
                    "How much do the ports carry?",
                    "Bytes received and sent.",
                    {
                        "{{device}}:{{port}}": f"{rate('gpumon_infiniband_receive_bytes_total')} + "
                        f"{rate('gpumon_infiniband_transmit_bytes_total')}"
                    },
                    unit="Bps",
                    minimum=0,
                ),
            ),
        ),
    ),
)
