"""DASHBOARD: one GPU over time, with everything that is known about it."""

from __future__ import annotations

from dashboards.node import MARGIN
from dashboards.panels import (
    LEVELS,
    NONE,
    YES_NO,
    Column,
    Dashboard,
    Section,
    graph,
    increments,
    stat,
    table,
    timeline,
)
from dashboards.promql import KERNEL_LOG, biggest, increase, rate, recent_xids, series, share_of_time, stated

_SHARE = {"unit": "percentunit", "minimum": 0, "maximum": 1}
_IDENTITIES = ("name", "serial", "uuid", "pci_bus_id", "vbios", "inforom", "gsp")
_SMALL = {"width": 6}


def _now(metric: str) -> str:
    return f"max({series(f'gpumon_gpu_{metric}')})"


DASHBOARD = Dashboard(
    uid="gpumon-gpu",
    title="gpumon: GPU",
    description="One GPU over time, with everything that is known about it.",
    one_node=True,
    one_gpu=True,
    sections=(
        Section(
            title="How is it?",
            panels=(
                stat("Verdict?", "The worst verdict about this GPU.", _now("health"), words=LEVELS, **_SMALL),
                stat("Does it answer?", "The driver can read this GPU.", _now("up"), words=YES_NO, **_SMALL),
                stat(
                    "Driver recommends?",
                    "Recovery action of the driver. Ampere and later, driver 570 and later.",
                    _now("recovery_action"),
                    words={
                        0: ("nothing", "green"),
                        1: ("reset", "orange"),
                        2: ("reboot", "red"),
                        3: ("drain P2P", "orange"),
                        4: ("drain, reset", "orange"),
                    },
                    **_SMALL,
                ),
                stat("Processes?", "Processes on this GPU.", _now("processes"), **_SMALL),
                table(
                    "Which board is it?",
                    "Identity of the board, for a return to its vendor.",
                    [f"max by ({', '.join(_IDENTITIES)}) ({series('gpumon_gpu_info')})"],
                    [Column(name, name) for name in _IDENTITIES],
                    width=24,
                    height=3,
                ),
                table(
                    "What is wrong with it?",
                    "One line for each fault of this GPU or its node that no other fault explains.",
                    [
                        stated(
                            biggest("check, code, reason, action", series("gpumon_health_check_info", 'device=""')),
                            "reason",
                            "nothing is wrong",
                            f"{series('gpumon_gpu_health')} != 1",
                        )
                    ],
                    [Column(name, name) for name in ("check", "code", "reason", "action")],
                ),
                timeline(
                    "How has this GPU been?",
                    "The worst verdict about this GPU.",
                    f"max by (gpu) ({series('gpumon_gpu_health')})",
                    "verdict",
                    LEVELS,
                ),
                table(
                    "When did it last log each Xid?",
                    "Last occurrence, and count since the agent's store was created.",
                    [
                        biggest("xid", f"1000 * {series('gpumon_gpu_xid_last_timestamp_seconds')}"),
                        stated(
                            biggest("xid", f"{series('gpumon_gpu_xid_errors_total')} > 0"), "xid", "none", KERNEL_LOG
                        ),
                    ],
                    [Column("xid", "Xid"), Column("A", "last", unit="dateTimeFromNow"), Column("B", "count")],
                ),
                timeline(
                    "Which Xids occurred in this time?",
                    "Each Xid is shown for 5 minutes.",
                    recent_xids("xid"),
                    "Xid {{xid}}",
                    {0: NONE, 1: ("Xid", "red")},
                    known=KERNEL_LOG,
                ),
            ),
        ),
        Section(
            title="What does it do?",
            panels=(
                graph(
                    "How busy are its parts?",
                    "Shares of time. Only `kernels` before Hopper. Tensor cores are idle in jobs without matrix work.",
                    {
                        name: share_of_time(f"gpumon_gpu_{metric}_seconds_total")
                        for name, metric in (
                            ("kernels", "busy"),
                            ("multiprocessors", "sm_active"),
                            ("tensor cores", "tensor_active"),
                            ("memory bandwidth", "dram_active"),
                        )
                    },
                    **_SHARE,
                ),
                graph(
                    "How is its memory used?",
                    "reserved: by the driver. size: all memory of the GPU.",
                    {
                        name: series(f"gpumon_gpu_memory_{metric}_bytes")
                        for name, metric in (("used", "used"), ("reserved", "reserved"), ("size", "total"))
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
                    "Share of time in which this reason reduced the clocks.",
                    {"{{reason}}": rate("gpumon_gpu_clock_event_seconds_total")},
                    unit="percentunit",
                    minimum=0,
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
                    },
                    unit="celsius",
                    width=8,
                ),
                graph(
                    "How far is it from slowing down?",
                    "The driver's margin, else slowdown threshold minus core temperature.",
                    {"margin": MARGIN},
                    unit="celsius",
                    width=8,
                ),
                graph(
                    "How much power does it draw?",
                    "Mean between points, from the energy counter, and the enforced limit.",
                    {
                        "power": rate("gpumon_gpu_energy_joules_total"),
                        "limit": series("gpumon_gpu_power_limit_watts"),
                    },
                    unit="watt",
                    width=8,
                    minimum=0,
                ),
            ),
        ),
        Section(
            title="Is its memory good?",
            panels=(
                graph(
                    "How many ECC errors has it counted?",
                    "Since the driver was loaded. Corrected errors are repaired; uncorrected ones end a process.",
                    {"{{severity}} {{location}}": series("gpumon_gpu_ecc_errors_total")},
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
                ),
            ),
        ),
        Section(
            title="Are its links good?",
            panels=(
                graph(
                    "How wide is its PCIe link?",
                    "Lanes in use and possible. The generation drops on idle GPUs by design, the width does not.",
                    {
                        "lanes": series("gpumon_gpu_pcie_link_width"),
                        "possible": series("gpumon_gpu_pcie_link_width_max"),
                        "generation": series("gpumon_gpu_pcie_link_generation"),
                    },
                    minimum=0,
                ),
                graph(
                    "How much goes over PCIe and NVLink?",
                    "NVLink without protocol overhead. PCIe on Hopper and later.",
                    {
                        "PCIe received": rate("gpumon_gpu_pcie_receive_bytes_total"),
                        "PCIe sent": rate("gpumon_gpu_pcie_transmit_bytes_total"),
                        "NVLink received": rate("gpumon_gpu_nvlink_receive_bytes_total"),
                        "NVLink sent": rate("gpumon_gpu_nvlink_transmit_bytes_total"),
                    },
                    unit="Bps",
                    minimum=0,
                ),
                increments(
                    "Did its PCIe link have errors?",
                    "New errors between points. Corrected ones and replays cost time, others may end the process.",
                    f"{increase('gpumon_gpu_pcie_errors_total', 'kind')} or "
                    f'label_replace({increase("gpumon_gpu_pcie_replays_total", "gpu")}, "kind", "replay", "", "")',
                    "{{kind}}",
                    series("gpumon_gpu_pcie_replays_total"),
                ),
                increments(
                    "Did its NVLinks have errors?",
                    "New errors between points, by link. From /metrics/links.",
                    increase("gpumon_nvlink_errors_total", "link, kind"),
                    "link {{link}} {{kind}}",
                    series("gpumon_nvlink_errors_total"),
                ),
            ),
        ),
        Section(
            title="Is it divided?",
            panels=(
                table(
                    "Which MIG instances has it?",
                    "Readings of each instance.",
                    [
                        stated(
                            biggest("mig_uuid, profile", series("gpumon_mig_memory_used_bytes")),
                            "profile",
                            "MIG is off",
                            f"{series('gpumon_gpu_mig_mode')} == 0",
                        ),
                        biggest("mig_uuid, profile", series("gpumon_mig_memory_total_bytes")),
                    ],
                    [
                        Column("profile", "profile"),
                        Column("A", "memory used", unit="bytes"),
                        Column("B", "memory", unit="bytes"),
                        Column("mig_uuid", "uuid of the instance"),
                    ],
                    width=24,
                    height=5,
                ),
            ),
        ),
    ),
)
