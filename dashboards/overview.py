"""TABLE: the first dashboard, a fleet of nodes at a glance. A panel is added by adding a row."""

from __future__ import annotations

from dashboards.panels import Section, graph, series, stat, table, timeline
from gpumon.health.alert_rules import JOB, rules
from gpumon.health.fleet_rules import MIN_NODES, ratio_at_best_size

UID = "gpumon-overview"
TITLE = "gpumon: overview"

MAX_SERIES = 24
"""Series in one graph: those of three nodes."""
SHOWN = f"Shows the {MAX_SERIES} most extreme series at each time. Select nodes and GPUs above to see others."

GPU = "{{instance}} GPU {{gpu}}"
EACH_GPU = "instance, gpu, uuid"
GPU_COLUMNS = {"instance": "node", "gpu": "GPU"}

RED, ORANGE, PURPLE = ({None: ok, 1: bad} for ok, bad in (("green", "red"), ("green", "orange"), ("text", "purple")))

LEVELS = {0.0: ("ok", "green"), 1.0: ("unknown", "purple"), 2.0: ("warn", "orange"), 3.0: ("fail", "red")}
"""Text and color of each verdict level."""

_TARGETS = f'up{{job="{JOB}",instance=~"$instance"}}'
_RULES = "|".join(rule.name for rule in rules())


def alerts(*matchers: str) -> str:
    """Return the selector of gpumon's alerts that fire in Prometheus."""
    return "ALERTS{" + ",".join((f'alertname=~"{_RULES}"', 'alertstate="firing"', *matchers)) + "}"


def _count(expression: str, known_by: str) -> str:
    """Return an expression that counts series. It is 0 only if `known_by` has series, else absent."""
    return f"count({expression}) or 0 * count({known_by})"


def _highest(expression: str) -> str:
    return f"topk({MAX_SERIES}, {expression})"


def _lowest(expression: str) -> str:
    return f"bottomk({MAX_SERIES}, {expression})"


def _new(metric: str, by: str) -> str:
    """Return the increase between two points."""
    return f"sum by ({by}) (increase({series(metric)}[$__rate_interval]))"


def _rate(metric: str) -> str:
    return f"rate({series(metric)}[$__rate_interval])"


def _both_directions(prefix: str) -> str:
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
_OBSERVED = _rate("gpumon_gpu_observed_seconds_total")

SECTIONS = (
    Section(
        title="Now",
        panels=(
            stat("Agents", "Agents that Prometheus reaches.", f"count({series('gpumon_build_info')})"),
            stat(
                "Agents down",
                f"Targets of the scrape job {JOB} that do not answer. Their GPUs are not monitored.",
                _count(f"{_TARGETS} == 0", _TARGETS),
                colors=RED,
            ),
            stat(
                "GPUs expected",
                "Configured, accepted or learned number of GPUs; `gpumon inventory` on the node shows its source.",
                f"sum({series('gpumon_gpus_expected')})",
            ),
            stat("GPUs up", "GPUs that answer.", f"sum({_UP})"),
            stat(
                "GPUs not up",
                "Known GPUs that do not answer. The table of faults shows the cause.",
                _count(f"{_UP} == 0", _UP),
                colors=RED,
            ),
            stat(
                "Nodes that fail",
                "Nodes with a fail verdict: the node or one of its GPUs is unfit for work.",
                _count(f"{series('gpumon_node_health')} == 3", series("gpumon_node_health")),
                colors=RED,
            ),
            stat(
                "Alerts firing",
                "Alerts that the agents evaluate themselves, without Prometheus.",
                f"sum({_FIRING}) or 0 * sum({series('gpumon_exposed_series')})",
                colors=ORANGE,
            ),
            stat(
                "Simulated nodes",
                "Agents that monitor a simulated node, not hardware.",
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
                "gpumon's rules that fire in Prometheus. docs/alerts.md has a runbook for each.",
                [_max(f"alertname, severity, {EACH_GPU}", alerts('instance=~"$instance"'))],
                {"alertname": "alert", "severity": "severity", **GPU_COLUMNS, "uuid": "uuid"},
                quiet=True,
            ),
            table(
                "Faults",
                "Why a GPU is not up. Its readings are absent; identity, fault and Xid counters remain.",
                [f"{series('gpumon_gpu_fault')} == 1"],
                {**GPU_COLUMNS, "fault": "fault", "uuid": "uuid"},
                quiet=True,
            ),
            table(
                "Verdicts",
                "One verdict for each fault. `gpumon status` on the node shows the reason and the action.",
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
                "The worst verdict of each node.",
                _max("instance", series("gpumon_node_health")),
                "{{instance}}",
                words=LEVELS,
            ),
            table(
                "Nodes",
                "One line for each agent.",
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
                "The time of the last occurrence of each Xid, and its count since the agent's store was created.",
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
                f"Share of the observed time in which a kernel ran, not the share of the GPU in use. {SHOWN}",
                _highest(f"{_rate('gpumon_gpu_busy_seconds_total')} / {_OBSERVED}"),
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
                f"Share of multiprocessors with work, averaged over the observed time. Hopper and later. {SHOWN}",
                _highest(f"{_rate('gpumon_gpu_sm_active_seconds_total')} / {_OBSERVED}"),
                GPU,
                unit="percentunit",
                minimum=0,
                maximum=1,
            ),
            graph(
                "Tensor cores busy",
                f"Share of the observed time. Hopper and later. Low for jobs with little matrix work. {SHOWN}",
                _highest(f"{_rate('gpumon_gpu_tensor_active_seconds_total')} / {_OBSERVED}"),
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
                f"Limits differ between boards: compare the margin. {SHOWN}",
                _highest(_CORE),
                GPU,
                unit="celsius",
            ),
            graph(
                "Margin to slowdown",
                "The driver's margin, else slowdown threshold minus core temperature. At 0 the GPU reduces its clocks. "
                f"Shows the {MAX_SERIES} smallest at each time.",
                f"bottomk({MAX_SERIES}, {_MARGIN})",
                GPU,
                unit="celsius",
            ),
            graph(
                "Memory temperature",
                f"Boards with HBM only. {SHOWN}",
                _highest(series("gpumon_gpu_memory_temperature_celsius")),
                GPU,
                unit="celsius",
            ),
            graph(
                "Power as a share of the limit",
                f"Power divided by the enforced limit. Near 100 % the limit reduces clocks. {SHOWN}",
                _highest(f"{series('gpumon_gpu_power_watts')} / {series('gpumon_gpu_power_limit_watts')}"),
                GPU,
                unit="percentunit",
                minimum=0,
            ),
            graph(
                "Power of each node's GPUs",
                f"Mean between points, from the energy counters. {SHOWN}",
                _highest(f"sum by (instance) ({_rate('gpumon_gpu_energy_joules_total')})"),
                "{{instance}}",
                unit="watt",
                minimum=0,
            ),
            stat(
                "Energy, 24 hours",
                "Sum of the selected GPUs, from the energy counters.",
                f"sum(increase({series('gpumon_gpu_energy_joules_total')}[1d]))",
                unit="joule",
                width=4,
                height=8,
            ),
            timeline(
                "Clocks reduced",
                "Reasons other than idle for which the driver reduces clocks. sw_power_cap is common under "
                "load; hw_slowdown, hw_thermal and hw_power_brake are not.",
                f"{_max('instance, gpu, reason', _NOT_IDLE)} == 1",
                f"{GPU} {{{{reason}}}}",
                words={1: ("reduced", "orange")},
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
                "GPUs with remapped rows. Pending: reset the GPU. Failed: no spare row is left, replace the board.",
                [
                    f"sum by ({EACH_GPU}) ({series('gpumon_gpu_rows_remapped_total')}) > 0",
                    f"{_max(EACH_GPU, series('gpumon_gpu_row_remap_pending'))} > 0",
                    f"{_max(EACH_GPU, series('gpumon_gpu_row_remap_failed'))} > 0",
                ],
                {**GPU_COLUMNS, "Value #A": "remapped", "Value #B": "pending", "Value #C": "failed", "uuid": "uuid"},
                quiet=True,
            ),
            table(
                "PCIe links with fewer lanes than possible",
                "Lanes in use and maximum. The generation drops on idle GPUs by design, the width does not.",
                [_max(EACH_GPU, f"{_LANES} < {_MAX_LANES}"), _max(EACH_GPU, f"{_MAX_LANES} > {_LANES}")],
                {**GPU_COLUMNS, "Value #A": "lanes", "Value #B": "possible", "uuid": "uuid"},
                quiet=True,
            ),
            graph(
                "PCIe replays",
                f"New replays between points. Many indicate poor signal quality. {SHOWN}",
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
                "NVLinks down",
                f"Links that should be up minus active and sleeping links. {SHOWN}",
                _highest(f"{series('gpumon_gpu_nvlinks_expected')} - {series('gpumon_gpu_nvlinks_active')}"),
                GPU,
                minimum=0,
            ),
            graph(
                "NVLink errors",
                f"New errors between points, summed over the links of a GPU. {SHOWN}",
                _highest(_new("gpumon_gpu_nvlink_errors_total", "instance, gpu, kind")),
                f"{GPU} {{{{kind}}}}",
                minimum=0,
                bars=True,
            ),
            graph(
                "NVLink traffic",
                f"Payload of all links of a GPU, both directions. {SHOWN}",
                _highest(_both_directions("gpumon_gpu_nvlink")),
                GPU,
                unit="Bps",
                minimum=0,
            ),
            graph(
                "InfiniBand and RoCE traffic",
                f"Traffic of each port, both directions. {SHOWN}",
                _highest(_both_directions("gpumon_infiniband")),
                "{{instance}} {{device}}:{{port}}",
                unit="Bps",
                minimum=0,
            ),
            table(
                "NVLinks that are down",
                "Read from /metrics/links, which the shipped configuration scrapes once a minute.",
                [f"{_max(f'{EACH_GPU}, link', series('gpumon_nvlink_up'))} == 0"],
                {**GPU_COLUMNS, "link": "link", "uuid": "uuid"},
                quiet=True,
            ),
            table(
                "GPUs that are not in their NVLink fabric",
                "State 1: not started, 2: in progress; 3 with a code other than 0: failed. Jobs that use NVLink cannot "
                "run on such a GPU.",
                [
                    f"({_max(EACH_GPU, series('gpumon_fabric_state'))} > 0) < 3",
                    f"{_max(EACH_GPU, series('gpumon_fabric_status'))} > 0",
                ],
                {**GPU_COLUMNS, "Value #A": "state", "Value #B": "code", "uuid": "uuid"},
                quiet=True,
            ),
            table(
                "InfiniBand and RoCE ports that are down",
                "Jobs on several nodes are slow or fail.",
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
                f"Last successful run at its best size. gloo runs on CPUs and does not measure GPUs. {SHOWN}",
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
                "Compared with the host's median",
                f"A run below 90 % twice is degraded. The ratio may exceed 100 %. {SHOWN}",
                _lowest(_max("instance, backend, algorithm", series("gpumon_probe_allreduce_baseline_ratio"))),
                "{{instance}} {{backend}} {{algorithm}}",
                unit="percentunit",
                minimum=0,
                quiet=True,
            ),
            graph(
                "Compared with published figures",
                f"Published for the same hardware. A run below 85 % is degraded. The ratio may exceed 100 %. {SHOWN}",
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
                "Wrong elements above 0 are silent data corruption: drain the node. If the last success is older than "
                "the last run, the last run did not succeed.",
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
                f"Duration of the last poll of each tier, mostly time in the driver. {SHOWN}",
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
                "Replacements of the sampler child by reason. deadline: a driver call did not return.",
                f"{_new('gpumon_sampler_restarts_total', 'instance, reason')} > 0",
                "{{instance}} {{reason}}",
                minimum=0,
                bars=True,
                quiet=True,
            ),
            graph(
                "Failed driver calls",
                "Calls and fields that failed between points. Unsupported ones are not counted.",
                f"{_new('gpumon_poll_errors_total', 'instance, tier, error')} > 0",
                "{{instance}} {{tier}} {{error}}",
                minimum=0,
                bars=True,
                quiet=True,
            ),
        ),
    ),
)
