"""Sections of the dashboard of one GPU: its links, its fabric and its MIG instances."""

from __future__ import annotations

from dashboards.panels import Column, Section, Words, graph, increments, table, timeline
from dashboards.promql import biggest, increase, rate, series, stated

_UP_DOWN: Words = {0: ("down", "red"), 1: ("up", "green")}
_FABRIC: Words = {
    0: ("not supported", "text"),
    1: ("not started", "orange"),
    2: ("in progress", "orange"),
    3: ("completed", "green"),
}
_SUMMARY: Words = {1: ("healthy", "green"), 2: ("unhealthy", "red"), 3: ("limited", "orange")}
_SHARE = {"unit": "percentunit", "minimum": 0, "maximum": 1}
_MIG = "mig_uuid, gpu_instance_id, compute_instance_id, profile"
_EACH_MIG = "{{profile}} {{gpu_instance_id}}"


def _pcie(direction: str) -> str:
    """Return the traffic from the counter, or on older GPUs the value that the driver measures over 20 ms."""
    name = f"gpumon_gpu_pcie_{direction}_bytes"
    return f"{rate(f'{name}_total')} or {series(f'{name}_per_second')}"


def _link_states(metric: str, kind: str) -> str:
    return f'label_replace({biggest("link", series(metric))}, "kind", "{kind}", "", "")'


LINKS = Section(
    title="Are its links good?",
    panels=(
        graph(
            "How wide is its PCIe link?",
            "Lanes in use and possible. The generation drops on idle GPUs by design, the width does not.",
            {
                "lanes": series("gpumon_gpu_pcie_link_width"),
                "possible": series("gpumon_gpu_pcie_link_width_max"),
                "generation": series("gpumon_gpu_pcie_link_generation"),
                "possible generation": series("gpumon_gpu_pcie_link_generation_max"),
            },
            minimum=0,
        ),
        graph(
            "How much goes over PCIe and NVLink?",
            "NVLink without protocol overhead.",
            {
                "PCIe received": _pcie("receive"),
                "PCIe sent": _pcie("transmit"),
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
        graph(
            "How many of its links are up?",
            "NVLinks of the GPU, those that should be up, and those that are; chip-to-chip links to a Grace CPU.",
            {
                "NVLinks": series("gpumon_gpu_nvlinks"),
                "NVLinks expected": series("gpumon_gpu_nvlinks_expected"),
                "NVLinks up": series("gpumon_gpu_nvlinks_active"),
                "chip to chip expected": series("gpumon_gpu_c2c_links_expected"),
                "chip to chip up": series("gpumon_gpu_c2c_links_active"),
            },
            minimum=0,
        ),
        timeline(
            "When was each link up?",
            "From /metrics/links.",
            f"{_link_states('gpumon_nvlink_up', 'NVLink')} or {_link_states('gpumon_c2c_link_up', 'chip to chip')}",
            "{{kind}} {{link}}",
            _UP_DOWN,
        ),
        increments(
            "Were its NVLinks retrained?",
            "Recoveries between points, by link and result. Blackwell and later. From /metrics/links.",
            increase("gpumon_nvlink_recoveries_total", "link, result"),
            "link {{link}} {{result}}",
            series("gpumon_nvlink_recoveries_total"),
        ),
        graph(
            "How many received bits are wrong?",
            "Bit error ratio of each NVLink. Blackwell and later. From /metrics/links.",
            {"link {{link}} {{kind}}": series("gpumon_nvlink_bit_error_ratio")},
            minimum=0,
        ),
        graph(
            "How fast are its NVLinks?",
            "Speed of the slowest NVLink in each direction.",
            {"slowest": series("gpumon_gpu_nvlink_speed_bytes_per_second")},
            unit="Bps",
            minimum=0,
        ),
        table(
            "Where do its NVLinks go?",
            "The other end of each link. From /metrics/links.",
            [biggest("link, peer_type, peer", series("gpumon_nvlink_peer_info"))],
            [Column("link", "link"), Column("peer_type", "kind"), Column("peer", "peer")],
        ),
        table(
            "Is it in its NVLink fabric?",
            "Registration with the fabric. code: NVML status of a completed registration, 0 is success. clique: GPUs "
            "that reach each other.",
            [
                biggest("uuid", series("gpumon_fabric_state")),
                biggest("uuid", series("gpumon_fabric_status")),
                biggest("uuid", series("gpumon_fabric_health_summary")),
                biggest("uuid, cluster_uuid, clique_id", series("gpumon_fabric_info")),
            ],
            [
                Column("A", "registration", words=_FABRIC),
                Column("B", "code", colors={None: "text", 1: "red"}),
                Column("C", "health", words=_SUMMARY),
                Column("cluster_uuid", "fabric"),
                Column("clique_id", "clique"),
            ],
        ),
        timeline(
            "Which checks of the fabric were bad?",
            "Health checks of the driver. H100 supports none.",
            biggest("check", series("gpumon_fabric_health")),
            "{{check}}",
            {0: ("healthy", "green"), 1: ("unhealthy", "red")},
        ),
    ),
)
MIG = Section(
    title="Is it divided?",
    panels=(
        table(
            "Which MIG instances has it?",
            "Readings of each instance.",
            [
                stated(
                    biggest(_MIG, series("gpumon_mig_memory_used_bytes")),
                    "profile",
                    "MIG is off",
                    f"{series('gpumon_gpu_mig_mode')} == 0",
                ),
                biggest(_MIG, series("gpumon_mig_memory_total_bytes")),
            ],
            [
                Column("profile", "profile"),
                Column("gpu_instance_id", "GPU instance"),
                Column("A", "memory used", unit="bytes"),
                Column("B", "memory", unit="bytes"),
                Column("mig_uuid", "uuid of the instance"),
            ],
            width=24,
            height=5,
        ),
        graph(
            "How busy are its MIG instances?",
            "Shares of each GPU instance. Hopper and later.",
            {
                f"{_EACH_MIG} {name}": series(f"gpumon_mig_{metric}_ratio")
                for name, metric in (
                    ("multiprocessors", "sm_active"),
                    ("occupancy", "sm_occupancy"),
                    ("tensor cores", "tensor_active"),
                    ("memory bandwidth", "dram_active"),
                )
            },
            **_SHARE,
        ),
        graph(
            "Which units of its MIG instances are busy?",
            "Shares of each GPU instance. Hopper and later, with detailed metrics.",
            {
                f"{_EACH_MIG} {name}": series(f"gpumon_mig_{name}_active_ratio")
                for name in ("graphics", "fp16", "fp32", "fp64", "integer")
            },
            **_SHARE,
        ),
    ),
)
