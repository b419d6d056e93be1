"""Panels of the dashboard of one GPU about its state, load, clocks, heat, power, memory and settings."""

from __future__ import annotations

from dashboards.node import MARGIN
from dashboards.panels import LEVELS, NONE, P_STATES, Column, Section, Words, graph, table, timeline
from dashboards.promql import biggest, rate, series, share_of_time

_SHARE = {"unit": "percentunit", "minimum": 0, "maximum": 1}
_PENDING: Words = {0: ("no", "green"), 1: ("yes", "orange")}
_ON_OFF: Words = {0: ("off", "text"), 1: ("on", "text")}
_EXCEEDED: Words = {0: ("no", "green"), 1: ("replace", "red")}
_LIMITS = series("gpumon_gpu_clock_event_active", 'reason!="idle"')
_COMPUTE: Words = {
    0: ("default", "text"),
    1: ("exclusive thread", "text"),
    2: ("prohibited", "orange"),
    3: ("exclusive process", "text"),
}


def _now(metric: str) -> str:
    return biggest("gpu", series(f"gpumon_gpu_{metric}"))


CHECKS = timeline(
    "Which checks were bad?",
    "Verdicts about this GPU that are not ok.",
    biggest("check", series("gpumon_health_check", 'gpu!=""')),
    "{{check}}",
    LEVELS,
    known=series("gpumon_gpu_health"),
)
UNREAD = timeline(
    "Why was it not read?",
    "The fault because of which the driver could not read it; released: monitoring was suspended by a request.",
    f"{biggest('fault', series('gpumon_gpu_fault'))} == 1 or "
    f'label_replace({biggest("gpu", series("gpumon_gpu_released"))} == 1, "fault", "released", "", "")',
    "{{fault}}",
    {0: ("no", "transparent"), 1: ("yes", "red")},
    known=series("gpumon_gpu_up"),
)
READINGS = (
    Section(
        title="What does it do?",
        panels=(
            graph(
                "How busy are its parts?",
                "Shares of time; occupancy: resident warps of the possible ones. Before Hopper kernels and memory.",
                {
                    name: share_of_time(f"gpumon_gpu_{metric}_seconds_total")
                    for name, metric in (
                        ("kernels", "busy"),
                        ("multiprocessors", "sm_active"),
                        ("tensor cores", "tensor_active"),
                        ("memory bandwidth", "dram_active"),
                    )
                }
                | {
                    "occupancy of multiprocessors": series("gpumon_gpu_sm_occupancy_ratio"),
                    "memory reads and writes": series("gpumon_gpu_memory_utilization_ratio"),
                },
                **_SHARE,
            ),
            graph(
                "How is its memory used?",
                "reserved: by the driver. size: all memory of the GPU. BAR1: the window of the host into it.",
                {
                    name: series(f"gpumon_gpu_{metric}_bytes")
                    for name, metric in (
                        ("used", "memory_used"),
                        ("reserved", "memory_reserved"),
                        ("size", "memory_total"),
                        ("BAR1 used", "bar1_used"),
                        ("BAR1 size", "bar1_total"),
                    )
                },
                unit="bytes",
                minimum=0,
            ),
            graph(
                "How fast are its clocks?",
                "The memory clock changes in few steps. maximum: of the multiprocessors.",
                {
                    "{{domain}}": series("gpumon_gpu_clock_hertz"),
                    "maximum {{domain}}": series("gpumon_gpu_clock_max_hertz", 'domain="sm"'),
                },
                unit="hertz",
                minimum=0,
            ),
            graph(
                "How long was each clock limit active?",
                "Share of time in which this reason or this policy of the driver reduced the clocks.",
                {
                    "{{reason}}": f"clamp_max({rate('gpumon_gpu_clock_event_seconds_total')}, 1)",
                    "policy {{policy}}": f"clamp_max({rate('gpumon_gpu_performance_limited_seconds_total')}, 1)",
                },
                unit="percentunit",
                minimum=0,
            ),
            timeline(
                "Which clock limits are active?",
                "Reasons other than idle. sw_power_cap is common under load.",
                f"{biggest('reason', _LIMITS)} == 1",
                "{{reason}}",
                {0: NONE, 1: ("reduced", "orange")},
                known=_LIMITS,
            ),
            timeline(
                "In which performance state is it?",
                "P0 is the highest performance, P8 is common for an idle GPU.",
                _now("performance_state"),
                "state",
                P_STATES,
            ),
            graph(
                "Which of its units are busy?",
                "Shares of time of its arithmetic units; graphics: any engine. Hopper and later, detailed metrics.",
                {
                    name: series(f"gpumon_gpu_{name}_active_ratio")
                    for name in ("graphics", "fp16", "fp32", "fp64", "integer")
                },
                **_SHARE,
            ),
            graph(
                "How busy are its media engines?",
                "Shares of time. With detailed metrics.",
                {
                    name: series(f"gpumon_gpu_{name}_utilization_ratio")
                    for name in ("encoder", "decoder", "jpeg", "ofa")
                },
                **_SHARE,
            ),
            table(
                "Which processes use it?",
                "The processes with the most memory. Only with processes.max_per_gpu set.",
                [biggest("pid, name", series("gpumon_gpu_process_memory_bytes"))],
                [Column("pid", "pid"), Column("name", "name"), Column("A", "memory used", unit="bytes")],
            ),
            table(
                "Which modes are set?",
                "Pending modes take effect at the next reset.",
                [
                    _now("ecc_mode"),
                    _now("ecc_mode_pending"),
                    _now("persistence_mode"),
                    _now("compute_mode"),
                    _now("mig_mode"),
                    _now("mig_mode_pending"),
                ],
                [
                    Column("A", "ECC", words=_ON_OFF),
                    Column("B", "ECC pending", words=_ON_OFF),
                    Column("C", "persistence", words=_ON_OFF),
                    Column("D", "compute mode", words=_COMPUTE),
                    Column("E", "MIG", words=_ON_OFF),
                    Column("F", "MIG pending", words=_ON_OFF),
                ],
            ),
        ),
    ),
    Section(
        title="Is it too hot, or short of power?",
        panels=(
            graph(
                "How hot is it?",
                "Memory temperature on boards with HBM or GDDR6X; slowdown thresholds if the driver has them.",
                {
                    "core": series("gpumon_gpu_temperature_celsius"),
                    "memory": series("gpumon_gpu_memory_temperature_celsius"),
                    "core slows down at": series("gpumon_gpu_temperature_slowdown_celsius"),
                    "memory slows down at": series("gpumon_gpu_memory_temperature_max_celsius"),
                    "core shuts down at": series("gpumon_gpu_temperature_shutdown_celsius"),
                },
                unit="celsius",
                width=8,
            ),
            graph(
                "How far is it from slowing down?",
                "The driver's margin, else slowdown threshold minus core temperature.",
                {
                    "margin": MARGIN,
                    "hardware slows down below": series("gpumon_gpu_thermal_margin_slowdown_celsius"),
                },
                unit="celsius",
                width=8,
            ),
            graph(
                "How much power does it draw?",
                "power: mean between points, from the energy counter. last second: the driver's average. limit: the "
                "enforced one. module: with the CPU.",
                {
                    "power": rate("gpumon_gpu_energy_joules_total"),
                    "last second": series("gpumon_gpu_power_watts"),
                    "now": series("gpumon_gpu_power_instant_watts"),
                    "limit": series("gpumon_gpu_power_limit_watts"),
                    "memory": series("gpumon_gpu_memory_power_watts"),
                    "module": series("gpumon_gpu_module_power_watts"),
                },
                unit="watt",
                width=8,
                minimum=0,
            ),
            table(
                "Which power limits can be set?",
                "The requested limit, the factory default and the range. With detailed metrics.",
                [_now(f"power_limit_{name}_watts") for name in ("requested", "default", "min", "max")],
                [
                    Column(letter, name, unit="watt")
                    for letter, name in zip("ABCD", ("requested", "default", "lowest", "highest"), strict=True)
                ],
                height=4,
            ),
            graph(
                "How fast is its fan?",
                "Requested speed of its maximum. n/a: the board has no fan.",
                {"fan": series("gpumon_gpu_fan_speed_ratio")},
                height=4,
                **_SHARE,
            ),
        ),
    ),
    Section(
        title="Is its memory good?",
        panels=(
            graph(
                "How many ECC errors has it counted?",
                "Since the driver was loaded, and over the lifetime of the board. Corrected errors are repaired; "
                "uncorrected ones end a process.",
                {
                    "{{severity}} {{location}}": series("gpumon_gpu_ecc_errors_total"),
                    "{{severity}} {{location}}, lifetime": series("gpumon_gpu_ecc_errors_lifetime_total"),
                },
                minimum=0,
            ),
            graph(
                "How many spare rows are left?",
                "Memory banks by the number of spare rows: max, high, partial, low, none.",
                {"{{availability}}": series("gpumon_gpu_row_remap_banks")},
                minimum=0,
            ),
            table(
                "Are memory rows remapped?",
                "pending: takes effect at the next reset. failed: no spare row is left, replace the board.",
                [
                    f"sum by (gpu) ({series('gpumon_gpu_rows_remapped_total')})",
                    biggest("gpu", series("gpumon_gpu_row_remap_pending")),
                    biggest("gpu", series("gpumon_gpu_row_remap_failed")),
                ],
                [
                    Column("A", "remapped rows"),
                    Column("B", "pending", words={0: ("no", "green"), 1: ("reset", "orange")}),
                    Column("C", "failed", words={0: ("no", "green"), 1: ("replace", "red")}),
                ],
                height=4,
            ),
            table(
                "Must the board be replaced?",
                "SRAM: uncorrected errors exceed the driver's threshold. Pages are retired before Ampere, at the next "
                "reboot.",
                [
                    _now("ecc_sram_threshold_exceeded"),
                    f"sum by (gpu) ({series('gpumon_gpu_retired_pages')})",
                    _now("retired_pages_pending"),
                ],
                [
                    Column("A", "SRAM threshold exceeded", words=_EXCEEDED),
                    Column("B", "retired pages"),
                    Column("C", "retirement pending", words=_PENDING),
                ],
                height=4,
            ),
        ),
    ),
)
