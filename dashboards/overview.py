"""TABLE: the first dashboard, a fleet of nodes at a glance. A panel is added by adding a row."""

from __future__ import annotations

from dashboards.panels import Section, graph, series, stat, table, timeline
from gpumon.health.alert_rules import JOB, rules
from gpumon.health.fleet_rules import MIN_NODES, ratio_at_best_size

UID = "gpumon-overview"
TITLE = "gpumon: overview"

MAX_SERIES = 24
"""Series in one graph: those of three nodes."""
SHOWN = f"At most the {MAX_SERIES} that stand out at each moment: choose nodes and GPUs above to see others."

GPU = "{{instance}} GPU {{gpu}}"
EACH_GPU = "instance, gpu, uuid"
GPU_COLUMNS = {"instance": "node", "gpu": "GPU"}

RED, ORANGE, PURPLE = ({None: ok, 1: bad} for ok, bad in (("green", "red"), ("green", "orange"), ("text", "purple")))

LEVELS = {0.0: ("ok", "green"), 1.0: ("unknown", "purple"), 2.0: ("warn", "orange"), 3.0: ("fail", "red")}
"""Of verdicts."""

_TARGETS = f'up{{job="{JOB}",instance=~"$instance"}}'
_RULES = "|".join(rule.name for rule in rules())


def alerts(*matchers: str) -> str:
    """Return panels of Prometheus's own evaluation of the rules, and what is firing."""
    return "ALERTS{" + ",".join((f'alertname=~"{_RULES}"', 'alertstate="firing"', *matchers)) + "}"


def _count(expression: str, known_by: str) -> str:
    """How many; 0 only where it is known that there are none: without any series of `known_by`, absent."""
    return f"count({expression}) or 0 * count({known_by})"


def _highest(expression: str) -> str:
    return f"topk({MAX_SERIES}, {expression})"


def _lowest(expression: str) -> str:
    return f"bottomk({MAX_SERIES}, {expression})"


def _new(metric: str, by: str) -> str:
    """Gained between two points."""
    return f"sum by ({by}) (increase({series(metric)}[$__rate_interval]))"


def _rate(metric: str) -> str:
    return f"rate({series(metric)}[$__rate_interval])"


def _both_ways(prefix: str) -> str:
    return f"{_rate(f'{prefix}_receive_bytes_total')} + {_rate(f'{prefix}_transmit_bytes_total')}"


def _max(by: str, expression: str) -> str:
    return f"max by ({by}) ({expression})"


_CORE, _LIMIT = series("gpumon_gpu_temperature_celsius"), series("gpumon_gpu_temperature_slowdown_celsius")
_MARGIN = f"({series('gpumon_gpu_thermal_margin_celsius')} or ({_LIMIT} - {_CORE}))"
_FIRING, _NOT_IDLE = (
    series("gpumon_alerts", 'state="firing"'),
    series("gpumon_gpu_clock_event_active", 'reason!="idle"'),
)
_LANES, _MAX_LANES = series("gpumon_gpu_pcie_link_width"), series("gpumon_gpu_pcie_link_width_max")
_UP = series("gpumon_gpu_up")
_FLEET_RATIO = ratio_at_best_size('{instance=~"$instance"}')
_WATCHED = _rate("gpumon_gpu_observed_seconds_total")

SECTIONS = (
    Section(
        title="Now",
        panels=(
            stat("Agents", "Agents that Prometheus reaches.", f"count({series('gpumon_build_info')})"),
            stat(
                "Agents down",
                f"Targets of the scrape job {JOB} that do not answer: nobody watches their GPUs.",
                _count(f"{_TARGETS} == 0", _TARGETS),
                colors=RED,
            ),
            stat(
                "GPUs expected",
                "What should be there; `gpumon inventory` on the node says why.",
                f"sum({series('gpumon_gpus_expected')})",
            ),
            stat("GPUs up", "GPUs that answer.", f"sum({_UP})"),
            stat(
                "GPUs not up",
                "GPUs that the agents know and that do not answer; the table of faults says why.",
                _count(f"{_UP} == 0", _UP),
                colors=RED,
            ),
            stat(
                "Nodes that fail",
                "Nodes with a verdict that makes them, or one of their GPUs, unfit for work.",
                _count(f"{series('gpumon_node_health')} == 3", series("gpumon_node_health")),
                colors=RED,
            ),
            stat(
                "Alerts firing",
                "Alerts of the agents themselves, which need no Prometheus.",
                f"sum({_FIRING}) or 0 * sum({series('gpumon_exposed_series')})",
                colors=ORANGE,
            ),
            stat(
                "Simulated nodes",
                "Agents that watch a simulated node, not hardware.",
                f"sum({series('gpumon_simulated')})",
                colors=PURPLE,
            ),
        ),
    ),
    Section(
        title="What is wrong",
        panels=(
            table(
                "Firing alerts",
                "Rules of gpumon that fire in Prometheus; docs/alerts.md says what to do about each.",
                [_max(f"alertname, severity, {EACH_GPU}", alerts('instance=~"$instance"'))],
                {"alertname": "alert", "severity": "severity", **GPU_COLUMNS, "uuid": "uuid"},
                quiet=True,
            ),
            table(
                "Faults",
                "Why a GPU is not up. Its readings are absent; identity, fault and Xid counters stay.",
                [f"{series('gpumon_gpu_fault')} == 1"],
                {**GPU_COLUMNS, "fault": "fault", "uuid": "uuid"},
                quiet=True,
            ),
            table(
                "Verdicts",
                "What the agents have found, each fault once; `gpumon status` on the node says why, and what to do.",
                [f"{_max(f'check, device, port, {EACH_GPU}', series('gpumon_health_check'))} > 1"],
                {
                    **GPU_COLUMNS,
                    "device": "port of",
                    "port": "port",
                    "check": "check",
                    "Value": "verdict",
                    "uuid": "uuid",
                },
                words=LEVELS,
                quiet=True,
            ),
            timeline(
                "Health of the nodes",
                "The worst verdict of each node, and unknown where nobody looks.",
                _max("instance", series("gpumon_node_health")),
                "{{instance}}",
                words=LEVELS,
            ),
            table(
                "Nodes",
                "A line for each agent.",
                [
                    _max("instance, version", series("gpumon_build_info")),
                    _max("instance, driver", series("gpumon_driver_info")),
                    _max("instance", series("gpumon_nvml_up")),
                    _max("instance", series("gpumon_gpus_expected")),
                    _max("instance", series("gpumon_gpus_visible")),
                    _max("instance", f"time() - {series('gpumon_snapshot_timestamp_seconds')}"),
                ],
                {
                    "instance": "node",
                    "version": "gpumon",
                    "driver": "driver",
                    "Value #C": "driver answers",
                    "Value #D": "GPUs expected",
                    "Value #E": "GPUs visible",
                    "Value #F": "age of readings",
                },
                units={"driver answers": "bool_yes_no", "age of readings": "s"},
            ),
            table(
                "Xids",
                "When each Xid was last seen, and how often since the agent's store was made.",
                [
                    _max(f"{EACH_GPU}, xid", f"1000 * {series('gpumon_gpu_xid_last_timestamp_seconds')}"),
                    _max(f"{EACH_GPU}, xid", f"{series('gpumon_gpu_xid_errors_total')} > 0"),
                ],
                {**GPU_COLUMNS, "xid": "Xid", "Value #A": "last", "Value #B": "count", "uuid": "uuid"},
                units={"last": "dateTimeFromNow"},
                quiet=True,
            ),
        ),
    ),
    Section(
        title="Use",
        panels=(
            graph(
                "Time busy",
                f"Share of the watched time in which a kernel ran, not share of the GPU in use. {SHOWN}",
                _highest(f"{_rate('gpumon_gpu_busy_seconds_total')} / {_WATCHED}"),
                GPU,
                unit="percentunit",
                minimum=0,
                maximum=1,
            ),
            graph(
                "Memory used",
                f"Share of the GPU's memory that is allocated. {SHOWN}",
                _highest(f"{series('gpumon_gpu_memory_used_bytes')} / {series('gpumon_gpu_memory_total_bytes')}"),
                GPU,
                unit="percentunit",
                minimum=0,
                maximum=1,
            ),
            graph(
                "Multiprocessors busy",
                f"Share of the watched time and of the multiprocessors with work, on Hopper and later. {SHOWN}",
                _highest(f"{_rate('gpumon_gpu_sm_active_seconds_total')} / {_WATCHED}"),
                GPU,
                unit="percentunit",
                minimum=0,
                maximum=1,
            ),
            graph(
                "Tensor cores busy",
                f"Share of the watched time, on Hopper and later: low where there is little matrix work. {SHOWN}",
                _highest(f"{_rate('gpumon_gpu_tensor_active_seconds_total')} / {_WATCHED}"),
                GPU,
                unit="percentunit",
                minimum=0,
                maximum=1,
            ),
            graph(
                "MIG instances: memory used",
                f"Share of the instance's memory that is allocated. {SHOWN}",
                _highest(f"{series('gpumon_mig_memory_used_bytes')} / {series('gpumon_mig_memory_total_bytes')}"),
                f"{GPU} {{{{profile}}}} {{{{gpu_instance_id}}}}/{{{{compute_instance_id}}}}",
                unit="percentunit",
                minimum=0,
                maximum=1,
                quiet=True,
                width=24,
                height=6,
            ),
        ),
    ),
    Section(
        title="Heat and power",
        panels=(
            graph(
                "Core temperature",
                f"What is too hot differs from board to board: look at the margin. {SHOWN}",
                _highest(_CORE),
                GPU,
                unit="celsius",
            ),
            graph(
                "Degrees left to slowdown",
                "The driver's margin, else slowdown threshold less core temperature. At 0 the GPU slows down. "
                f"The {MAX_SERIES} smallest at each moment.",
                f"bottomk({MAX_SERIES}, {_MARGIN})",
                GPU,
                unit="celsius",
            ),
            graph(
                "Memory temperature",
                f"Of boards with HBM. {SHOWN}",
                _highest(series("gpumon_gpu_memory_temperature_celsius")),
                GPU,
                unit="celsius",
            ),
            graph(
                "Power, share of the limit",
                f"Of the limit enforced. Near 100 % the GPU is held back by power. {SHOWN}",
                _highest(f"{series('gpumon_gpu_power_watts')} / {series('gpumon_gpu_power_limit_watts')}"),
                GPU,
                unit="percentunit",
                minimum=0,
            ),
            graph(
                "Power of each node's GPUs",
                f"From the energy counters: the true mean between points. {SHOWN}",
                _highest(f"sum by (instance) ({_rate('gpumon_gpu_energy_joules_total')})"),
                "{{instance}}",
                unit="watt",
                minimum=0,
            ),
            stat(
                "Energy, 24 hours",
                "Of all chosen GPUs, from the energy counters.",
                f"sum(increase({series('gpumon_gpu_energy_joules_total')}[1d]))",
                unit="joule",
                width=4,
                height=8,
            ),
            timeline(
                "Clocks held down",
                "Reasons other than idleness for which the driver holds clocks down. sw_power_cap is common under "
                "load; hw_slowdown, hw_thermal and hw_power_brake are not.",
                f"{_max('instance, gpu, reason', _NOT_IDLE)} == 1",
                f"{GPU} {{{{reason}}}}",
                words={1: ("held down", "orange")},
                quiet=True,
                width=20,
            ),
        ),
    ),
    Section(
        title="Memory errors and PCIe",
        panels=(
            graph(
                "ECC errors",
                f"New errors between points, by severity and place. {SHOWN}",
                _highest(_new("gpumon_gpu_ecc_errors_total", "instance, gpu, severity, location")),
                f"{GPU} {{{{severity}}}} {{{{location}}}}",
                minimum=0,
                bars=True,
            ),
            table(
                "Memory rows",
                "GPUs with replaced rows. Pending: waits for a reset. Failed: no spare left, replace the board.",
                [
                    f"sum by ({EACH_GPU}) ({series('gpumon_gpu_rows_remapped_total')}) > 0",
                    f"{_max(EACH_GPU, series('gpumon_gpu_row_remap_pending'))} > 0",
                    f"{_max(EACH_GPU, series('gpumon_gpu_row_remap_failed'))} > 0",
                ],
                {**GPU_COLUMNS, "Value #A": "replaced", "Value #B": "pending", "Value #C": "failed", "uuid": "uuid"},
                quiet=True,
            ),
            table(
                "PCIe links narrower than they could be",
                "Lanes in use and possible. Generation falls on idle GPUs by design, width does not.",
                [_max(EACH_GPU, f"{_LANES} < {_MAX_LANES}"), _max(EACH_GPU, f"{_MAX_LANES} > {_LANES}")],
                {**GPU_COLUMNS, "Value #A": "lanes", "Value #B": "possible", "uuid": "uuid"},
                quiet=True,
            ),
            graph(
                "PCIe packets sent again",
                f"New replays between points: a link that is electrically poor. {SHOWN}",
                _highest(_new("gpumon_gpu_pcie_replays_total", "instance, gpu")),
                GPU,
                minimum=0,
                bars=True,
            ),
        ),
    ),
    Section(
        title="Links",
        panels=(
            graph(
                "NVLinks that carry no traffic",
                "Links the GPU has, less those that are active or asleep. A board without a bridge has links that "
                f"never come up. {SHOWN}",
                _highest(f"{series('gpumon_gpu_nvlinks')} - {series('gpumon_gpu_nvlinks_active')}"),
                GPU,
                minimum=0,
            ),
            graph(
                "NVLink errors",
                f"New errors between points, over all links of a GPU. {SHOWN}",
                _highest(_new("gpumon_nvlink_errors_total", "instance, gpu, kind")),
                f"{GPU} {{{{kind}}}}",
                minimum=0,
                bars=True,
            ),
            graph(
                "NVLink traffic",
                f"Payload of all links of a GPU, both ways. {SHOWN}",
                _highest(_both_ways("gpumon_gpu_nvlink")),
                GPU,
                unit="Bps",
                minimum=0,
            ),
            graph(
                "InfiniBand and RoCE traffic",
                f"Of a port, both ways. {SHOWN}",
                _highest(_both_ways("gpumon_infiniband")),
                "{{instance}} {{device}}:{{port}}",
                unit="Bps",
                minimum=0,
            ),
            table(
                "GPUs that are not in their NVLink fabric",
                "State 1: not started, 2: in progress; 3 with a code other than 0: failed. Such a GPU runs no job that "
                "needs the others.",
                [
                    f"({_max(EACH_GPU, series('gpumon_fabric_state'))} > 0) < 3",
                    f"{_max(EACH_GPU, series('gpumon_fabric_status'))} > 0",
                ],
                {**GPU_COLUMNS, "Value #A": "state", "Value #B": "code", "uuid": "uuid"},
                quiet=True,
            ),
            table(
                "InfiniBand and RoCE ports that are down",
                "Jobs over several nodes are slow or fail.",
                [f"{_max('instance, device, port, link_layer', series('gpumon_infiniband_port_up'))} == 0"],
                {"instance": "node", "device": "device", "port": "port", "link_layer": "network"},
                quiet=True,
            ),
        ),
    ),
    Section(
        title="All-reduce",
        panels=(
            graph(
                "Bus bandwidth",
                f"Of the last success, at its best size. gloo runs on CPUs and says nothing of GPUs. {SHOWN}",
                _highest(_max("instance, backend, algorithm", series("gpumon_probe_allreduce_busbw_bytes_per_second"))),
                "{{instance}} {{backend}} {{algorithm}}",
                unit="Bps",
                minimum=0,
            ),
            graph(
                "Runs by outcome",
                "Runs that ended between points.",
                f"{_new('gpumon_probe_allreduce_runs_total', 'outcome')} > 0",
                "{{outcome}}",
                minimum=0,
                bars=True,
                quiet=True,
            ),
            graph(
                "Beside this host's own median",
                f"Below 90 % a run that is low twice is degraded; it may exceed 100 %. {SHOWN}",
                _lowest(_max("instance, backend, algorithm", series("gpumon_probe_allreduce_baseline_ratio"))),
                "{{instance}} {{backend}} {{algorithm}}",
                unit="percentunit",
                minimum=0,
                quiet=True,
            ),
            graph(
                "Beside what others have published",
                f"For the same hardware: below 85 % a run is degraded, and it may exceed 100 %. {SHOWN}",
                _lowest(_max("instance, backend, algorithm", series("gpumon_probe_allreduce_expected_ratio"))),
                "{{instance}} {{backend}} {{algorithm}}",
                unit="percentunit",
                minimum=0,
                quiet=True,
            ),
            graph(
                "Compared with the fleet",
                f"Bus bandwidth over the median of at least {MIN_NODES} nodes with the same GPU model and rank count, "
                f"at each node's best size. Needs the recording rules in alert_rules/gpumon.yml. {SHOWN}",
                _lowest(f"min by (instance, algorithm) ({_FLEET_RATIO})"),
                "{{instance}} {{algorithm}}",
                unit="percentunit",
                minimum=0,
                quiet=True,
            ),
            table(
                "Last runs",
                "Wrong elements other than 0 are silent corruption: drain the node. A success older than the last run "
                "says that the last run did not succeed.",
                [
                    _max("instance", f"1000 * {series('gpumon_probe_allreduce_last_run_timestamp_seconds')}"),
                    _max("instance", f"1000 * {series('gpumon_probe_allreduce_last_success_timestamp_seconds')}"),
                    _max("instance", series("gpumon_probe_allreduce_duration_seconds")),
                    _max("instance", series("gpumon_probe_allreduce_ranks")),
                    _max("instance", series("gpumon_probe_allreduce_wrong_elements")),
                ],
                {
                    "instance": "node",
                    "Value #A": "last run",
                    "Value #B": "last success",
                    "Value #C": "duration",
                    "Value #D": "ranks",
                    "Value #E": "wrong elements",
                },
                units={"last run": "dateTimeFromNow", "last success": "dateTimeFromNow", "duration": "s"},
                width=24,
                height=6,
            ),
        ),
    ),
    Section(
        title="The agents themselves",
        panels=(
            graph(
                "Duration of a poll",
                f"Of each tier's last; mostly the driver's own time. {SHOWN}",
                _highest(series("gpumon_poll_duration_seconds")),
                "{{instance}} {{tier}}",
                unit="s",
                minimum=0,
            ),
            graph(
                "Age of the readings",
                f"Time since the last complete poll, with Prometheus' clock. {SHOWN}",
                _highest(f"time() - {series('gpumon_snapshot_timestamp_seconds')}"),
                "{{instance}}",
                unit="s",
            ),
            graph(
                "Sampler replacements",
                "By reason; deadline is a driver call that did not return.",
                f"{_new('gpumon_sampler_restarts_total', 'instance, reason')} > 0",
                "{{instance}} {{reason}}",
                minimum=0,
                bars=True,
                quiet=True,
            ),
            graph(
                "Failed driver calls",
                "Calls and fields that failed between points; what a GPU does not support is not counted.",
                f"{_new('gpumon_poll_errors_total', 'instance, tier, error')} > 0",
                "{{instance}} {{tier}} {{error}}",
                minimum=0,
                bars=True,
                quiet=True,
            ),
        ),
    ),
)
