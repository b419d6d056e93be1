"""DASHBOARD: NVLink, fabric, InfiniBand and RoCE, and the all-reduce that measures what they do together."""

from __future__ import annotations

from dashboards.panels import (
    GPU,
    NEAREST_GPU,
    NODE,
    UUID,
    YES_NO,
    Column,
    Dashboard,
    Panel,
    Section,
    Words,
    graph,
    increments,
    stat,
    table,
    timeline,
)
from dashboards.promql import (
    EACH_GPU,
    EACH_NODE,
    KERNEL_LOG,
    MAX_SERIES,
    ON_NODE,
    biggest,
    count,
    increase,
    rate,
    series,
    stated,
)
from gpumon.fleet.recording_rules import GPUS, MIN_NODES, ratio_at_best_size

_LOWEST = f"Shows the {MAX_SERIES} lowest series at each time: select nodes to see others."
_HIGHEST = f"Shows the {MAX_SERIES} highest series at each time: select nodes to see others."
_RUN = f"{EACH_NODE}, backend, algorithm"
_EACH_RUN = "{{instance}} {{backend}} {{algorithm}}"
_PORT = f"{EACH_NODE}, device, port"
_GOOD_IF_0 = {None: "green", 1: "red"}
_STAT = {"colors": _GOOD_IF_0, "width": 5}

_NVLINKS = series("gpumon_gpu_nvlinks_expected")
_UNKNOWN_GPUS = (
    f"(sum({series(f'{GPUS}:expected')}) - (sum({series(f'{GPUS}:up')}) or 0 * sum({series(f'{GPUS}:expected')})))"
)
"""Number of GPUs that do not answer."""
_SERVICES = f"({series('gpumon_fabric_manager_up')} or {series('gpumon_imex_up')})"
_PORT_INFO, _PORT_UP = series("gpumon_infiniband_port_info"), series("gpumon_infiniband_port_up")
_PORTS_DOWN = f"{biggest(f'{_PORT}, role, link_layer, gpu', _PORT_INFO)} and on ({_PORT}) {_PORT_UP} == 0"
_FABRIC_PORTS = series("gpumon_infiniband_port_info", 'role="fabric"')
_PORTS = f"{_PORT_UP} * on ({_PORT}) group_left () {_FABRIC_PORTS}"
_FLEET_RATIO = ratio_at_best_size(f"{{{', '.join(ON_NODE)}}}")
_OUTSIDE = f"(({series('gpumon_fabric_state')} > 0) < 3 or {series('gpumon_fabric_status')} > 0)"
"""GPUs whose registration is not completed, or completed with an error."""
_FABRIC_STATE = (
    f"({biggest(EACH_GPU, series('gpumon_fabric_state'))} + "
    f"({biggest(EACH_GPU, series('gpumon_fabric_status'))} > bool 0) or "
    f"{biggest(EACH_GPU, series('gpumon_fabric_state'))})"
)
"""NVML's state of the registration; one more than completed if it completed with an error."""
_STATES: Words = {1: ("not started", "orange"), 2: ("in progress", "orange"), 4: ("failed", "red")}


def _probe(metric: str) -> str:
    return series(f"gpumon_probe_allreduce_{metric}")


def _service(metric: str, name: str) -> str:
    return f'label_replace({biggest(EACH_NODE, series(f"gpumon_{metric}_up"))}, "service", "{name}", "", "")'


def _worst(expression: str) -> str:
    return f"bottomk({MAX_SERIES}, {expression})"


def _most(expression: str) -> str:
    return f"topk({MAX_SERIES}, {expression})"


def _ratio(title: str, description: str, legend: str, expression: str) -> Panel:
    return graph(
        title,
        f"{description} The ratio may exceed 100 %. {_LOWEST}",
        {legend: _worst(expression)},
        unit="percentunit",
        minimum=0,
    )


DASHBOARD = Dashboard(
    uid="gpumon-links",
    title="gpumon: links and collectives",
    description="Are the links up and without errors, and how fast is an all-reduce over them?",
    sections=(
        Section(
            title="Are all links up?",
            panels=(
                stat(
                    "NVLinks down?",
                    "Links that should be up and are not, of the GPUs that answer.",
                    f"sum({_NVLINKS} - {series('gpumon_gpu_nvlinks_active')})",
                    **_STAT,
                ),
                stat(
                    "GPUs whose links are unknown?",
                    "GPUs that should be there and do not answer: lost, without a driver or without an agent. Their "
                    "links are not counted as up or down.",
                    _UNKNOWN_GPUS,
                    colors={None: "green", 1: "purple"},
                    width=4,
                ),
                stat(
                    "Fabric ports down?",
                    "InfiniBand and RoCE ports that connect the jobs of several nodes.",
                    count(f"{_PORTS} == 0", _FABRIC_PORTS),
                    **_STAT,
                ),
                stat(
                    "GPUs outside their fabric?",
                    "GPUs whose registration with the NVLink fabric is not completed, or failed.",
                    count(_OUTSIDE, series("gpumon_fabric_state")),
                    **_STAT,
                ),
                stat(
                    "Fabric managers or IMEX down?",
                    "Services without which jobs cannot use NVLink.",
                    count(f"{_SERVICES} == 0", _SERVICES),
                    **_STAT,
                ),
                table(
                    "Which NVLinks are down?",
                    "GPUs that answer, from /metrics/links (scraped once a minute).",
                    [
                        stated(
                            f"{biggest(f'{EACH_GPU}, link', series('gpumon_nvlink_up'))} == 0",
                            "link",
                            "none",
                            series("gpumon_nvlink_up"),
                        )
                    ],
                    [Column("instance", NODE), Column("gpu", GPU), Column("link", "link"), Column("uuid", UUID)],
                ),
                table(
                    "Which ports are down?",
                    "Ports with the role other connect storage or management: they do not fail a node.",
                    [stated(_PORTS_DOWN, "device", "none", _PORT_UP)],
                    [
                        Column("instance", NODE),
                        Column("device", "device"),
                        Column("port", "port"),
                        Column("role", "role"),
                        Column("link_layer", "network"),
                        Column("gpu", NEAREST_GPU),
                    ],
                ),
                table(
                    "Which GPUs are outside their fabric?",
                    "Jobs that use NVLink cannot run on such a GPU. code: NVML status of a completed registration.",
                    [
                        stated(
                            f"{_FABRIC_STATE} and on ({EACH_GPU}) {_OUTSIDE}",
                            "instance",
                            "none",
                            series("gpumon_fabric_state"),
                        ),
                        f"{biggest(EACH_GPU, series('gpumon_fabric_status'))} > 0",
                    ],
                    [
                        Column("instance", NODE),
                        Column("gpu", GPU),
                        Column("A", "state", words=_STATES),
                        Column("B", "code"),
                        Column("uuid", UUID),
                    ],
                ),
                timeline(
                    "Which services of the links ran?",
                    "Fabric manager and IMEX, where they are installed.",
                    f"{_service('fabric_manager', 'fabric manager')} or {_service('imex', 'IMEX')}",
                    "{{instance}} {{service}}",
                    YES_NO,
                ),
            ),
        ),
        Section(
            title="Do they have errors, and what do they carry?",
            panels=(
                increments(
                    "Which NVLinks had errors?",
                    "New errors between points, by link. From /metrics/links.",
                    increase("gpumon_nvlink_errors_total", f"{EACH_GPU}, link, kind"),
                    "{{instance}} GPU {{gpu}} link {{link}} {{kind}}",
                    series("gpumon_nvlink_errors_total"),
                ),
                increments(
                    "Which ports had errors?",
                    "New errors between points, by kind. From /metrics/links.",
                    increase("gpumon_infiniband_errors_total", f"{_PORT}, kind"),
                    "{{instance}} {{device}}:{{port}} {{kind}}",
                    series("gpumon_infiniband_errors_total"),
                ),
                increments(
                    "Which ports went down and came back?",
                    "How often the link went down between points. If it repeats, the cable or module is bad.",
                    increase("gpumon_infiniband_link_downs_total", _PORT),
                    "{{instance}} {{device}}:{{port}}",
                    series("gpumon_infiniband_link_downs_total"),
                ),
                table(
                    "Which NVSwitches had errors?",
                    "SXids since the agent's store was created, from the kernel log.",
                    [
                        stated(
                            biggest(f"{EACH_NODE}, nvswitch, sxid", f"{series('gpumon_nvswitch_errors_total')} > 0"),
                            "nvswitch",
                            "none",
                            KERNEL_LOG,
                        )
                    ],
                    [
                        Column("instance", NODE),
                        Column("nvswitch", "NVSwitch"),
                        Column("sxid", "SXid"),
                        Column("A", "count"),
                    ],
                ),
                graph(
                    "Which nodes use NVLink most?",
                    f"Payload received by all GPUs of a node. {_HIGHEST}",
                    {"{{instance}}": _most(f"sum by ({EACH_NODE}) ({rate('gpumon_gpu_nvlink_receive_bytes_total')})")},
                    unit="Bps",
                    minimum=0,
                ),
                graph(
                    "Which nodes use their ports most?",
                    f"Bytes received by all ports of a node. {_HIGHEST}",
                    {"{{instance}}": _most(f"sum by ({EACH_NODE}) ({rate('gpumon_infiniband_receive_bytes_total')})")},
                    unit="Bps",
                    minimum=0,
                ),
            ),
        ),
        Section(
            title="How fast is an all-reduce?",
            panels=(
                graph(
                    "How fast is an all-reduce on each node?",
                    "Bus bandwidth of the last successful run at its best size. gloo runs on CPUs and does not measure "
                    f"GPUs. {_LOWEST}",
                    {_EACH_RUN: _worst(biggest(_RUN, _probe("busbw_bytes_per_second")))},
                    unit="Bps",
                    minimum=0,
                ),
                _ratio(
                    "Is a node slower than it was?",
                    "Last run compared with the median of this host's own runs. Below 90 % twice is degraded.",
                    _EACH_RUN,
                    biggest(_RUN, _probe("baseline_ratio")),
                ),
                _ratio(
                    "Is a node slower than the fleet?",
                    f"Compared with the median of at least {MIN_NODES} nodes with the same GPU and number of ranks.",
                    "{{instance}} {{algorithm}}",
                    f"min by ({EACH_NODE}, algorithm) ({_FLEET_RATIO})",
                ),
                _ratio(
                    "Is a node slower than published figures?",
                    "Published for the same hardware. Below 85 % is degraded.",
                    _EACH_RUN,
                    biggest(_RUN, _probe("expected_ratio")),
                ),
                table(
                    "When was each node last measured, and with what result?",
                    "If the last success is older than the last run, that run did not succeed. Wrong elements above 0 "
                    "are silent data corruption: drain the node.",
                    [
                        biggest(EACH_NODE, f"1000 * {_probe('last_run_timestamp_seconds')}"),
                        biggest(EACH_NODE, f"1000 * {_probe('last_success_timestamp_seconds')}"),
                        biggest(EACH_NODE, _probe("duration_seconds")),
                        biggest(EACH_NODE, _probe("ranks")),
                        biggest(EACH_NODE, _probe("wrong_elements")),
                    ],
                    [
                        Column("instance", NODE),
                        Column("A", "last run", unit="dateTimeFromNow"),
                        Column("B", "last success", unit="dateTimeFromNow"),
                        Column("C", "duration", unit="s"),
                        Column("D", "ranks"),
                        Column("E", "wrong elements", colors={None: "text", 1: "red"}),
                    ],
                    sort="last success",
                    width=24,
                ),
                increments(
                    "How did runs end?",
                    "Runs between points, by outcome.",
                    increase("gpumon_probe_allreduce_runs_total", "outcome", 'outcome!="skipped"'),
                    "{{outcome}}",
                    _probe("runs_total"),
                ),
                increments(
                    "Why were runs skipped?",
                    "Skipped runs between points, by reason.",
                    increase("gpumon_probe_allreduce_skips_total", "reason"),
                    "{{reason}}",
                    _probe("runs_total"),
                ),
            ),
        ),
    ),
)
