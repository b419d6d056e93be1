"""TABLE: what is read of each GPU. A metric is added by adding a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gpumon.snapshot.reading import (
    RARE,
    SLOW,
    Bits,
    Call,
    Difference,
    Distinct,
    Each,
    Either,
    Field,
    Integral,
    Source,
    accumulated,
    agent,
    identity,
    reading,
)

MEMORY_V2 = 0x02000028
"""Version of nvmlMemory_v2_t: its `used` does not include what the driver reserved; that of version 1 does."""

FAULTS = ("lost", "missing", "reset_required", "no_permission", "stuck", "init_failed", "unknown")
"""Why a GPU is not `up`. stuck and missing are the agent's own findings, the others NVML's."""

CLOCK_EVENTS: Mapping[str, int] = {
    "idle": 0x001,
    "applications_clocks": 0x002,
    "sw_power_cap": 0x004,
    "hw_slowdown": 0x008,
    "sync_boost": 0x010,
    "sw_thermal": 0x020,
    "hw_thermal": 0x040,
    "hw_power_brake": 0x080,
    "display_clocks": 0x100,
}

_EVENT_SECONDS = Integral("clock_event_active")
# The header gives these counters in nanoseconds; nvidia-smi prints them as microseconds. Not yet seen on hardware.
_CLOCK_EVENT_SOURCES = dict.fromkeys(CLOCK_EVENTS, _EVENT_SECONDS) | {
    reason: Either(Field(f"CLOCKS_EVENT_{reason.upper()}", scale=1e-9), _EVENT_SECONDS)
    for reason in ("sw_power_cap", "sync_boost", "sw_thermal", "hw_thermal", "hw_power_brake")
}


def _memory(attribute: str) -> Either:
    return Either(Call("MemoryInfo", (MEMORY_V2,), attribute), Call("MemoryInfo", (), attribute))


def _ecc(counter: str) -> Each:
    sources: dict[str, Source] = {}
    for severity, bits in (("corrected", "SBE"), ("uncorrected", "DBE")):
        dram = Field(f"ECC_{bits}_{counter}_DEV")
        sources[f"{severity},dram"] = dram
        sources[f"{severity},sram"] = Difference(Field(f"ECC_{bits}_{counter}_TOTAL"), dram)
    return Each(sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Readings of one GPU at one moment; None is what it or its driver could not give."""

    PREFIX: ClassVar[str] = "gpumon_gpu_"
    LABELS: ClassVar[tuple[str, ...]] = ("gpu", "uuid")

    name: str | None = identity("Product name.", Call("Name"))
    serial: str | None = identity("Serial number of the board.", Call("Serial"))
    vbios: str | None = identity("Version of the video BIOS.", Call("VbiosVersion"))
    pci_bus_id: str | None = identity("PCI address.", Call("PciInfo", attribute="busId"))
    architecture: str | None = identity("Architecture.", Call("Architecture"))
    compute_capability: str | None = identity("CUDA compute capability.", Call("CudaComputeCapability"))
    minor: str | None = identity("Number of its device node, /dev/nvidia<minor>.", Call("MinorNumber"))

    up: float | None = agent("1 when this GPU answers, 0 when it does not.")
    fault: dict[str, float] | None = agent("1 for the reason why this GPU does not answer.", label="fault")
    observed_seconds_total: float | None = agent(
        "Time this GPU was watched: the denominator for every accumulated counter."
    )
    recovery_action: float | None = reading(
        "The driver's own advice: 0 none, 1 reset, 2 reboot, 3 drain peer to peer, 4 drain and reset.",
        Field("RECOVERY_ACTION"),
        note="Ampere and later, driver 570 and later.",
    )
    utilization_ratio: float | None = reading(
        "Share of time in which a kernel ran, however small.",
        Call("UtilizationRates", attribute="gpu", scale=0.01),
        note="Not the share of the GPU in use. Absent with MIG on.",
    )
    memory_utilization_ratio: float | None = reading(
        "Share of time in which memory was read or written.",
        Call("UtilizationRates", attribute="memory", scale=0.01),
        note="Not occupancy. Absent with MIG on.",
    )
    busy_seconds_total: float | None = accumulated("Time with a kernel running.", of="utilization_ratio")
    memory_total_bytes: float | None = reading("Size of the GPU's memory.", _memory("total"))
    memory_used_bytes: float | None = reading("Memory allocated.", _memory("used"))
    memory_free_bytes: float | None = reading("Memory free.", _memory("free"))
    memory_reserved_bytes: float | None = reading(
        "Memory the driver keeps for itself.", Call("MemoryInfo", (MEMORY_V2,), "reserved")
    )
    temperature_celsius: float | None = reading(
        "GPU core temperature.", Either(Call("TemperatureV", (0,)), Call("Temperature", (0,)))
    )
    memory_temperature_celsius: float | None = reading(
        "Memory temperature.", Field("MEMORY_TEMP"), note="Boards with HBM or GDDR6X."
    )
    thermal_margin_celsius: float | None = reading(
        "Degrees left until the GPU slows down.", Call("MarginTemperature"), every=SLOW, note="Driver 570 and later."
    )
    temperature_slowdown_celsius: float | None = reading(
        "Core temperature at which the GPU slows down.", Call("TemperatureThreshold", (1,)), every=RARE
    )
    temperature_shutdown_celsius: float | None = reading(
        "Core temperature at which the GPU shuts down.", Call("TemperatureThreshold", (0,)), every=RARE
    )
    power_watts: float | None = reading(
        "Mean power over the last second.",
        Either(Field("POWER_AVERAGE", scale=1e-3), Call("PowerUsage", scale=1e-3)),
        note="Before Ampere, and on GA100: power at the moment. Prefer rate(gpumon_gpu_energy_joules_total).",
    )
    power_limit_watts: float | None = reading(
        "Power limit enforced.",
        Either(Field("POWER_CURRENT_LIMIT", scale=1e-3), Call("EnforcedPowerLimit", scale=1e-3)),
        every=SLOW,
    )
    energy_joules_total: float | None = reading(
        "Energy since the driver was loaded.",
        Either(Field("TOTAL_ENERGY", scale=1e-3), Integral("power_watts")),
        note="Before Volta and on some guests: power integrated by the agent since its start.",
    )
    clock_hertz: dict[str, float] | None = reading(
        "Current clock.",
        Each(
            {
                domain: Call("ClockInfo", (n,), scale=1e6)
                for n, domain in enumerate(("graphics", "sm", "memory", "video"))
            }
        ),
        every=SLOW,
        label="domain",
    )
    clock_event_active: dict[str, float] | None = reading(
        "1 while this reason holds the clocks down.",
        Bits(Call("CurrentClocksEventReasons"), CLOCK_EVENTS, supported=Call("SupportedClocksEventReasons")),
        label="reason",
        note="`idle` is normal.",
    )
    clock_event_seconds_total: dict[str, float] | None = reading(
        "Time in which this reason held the clocks down.",
        Each(_CLOCK_EVENT_SOURCES),
        label="reason",
        note="From the driver's counters where it has them (575 and later), else integrated from the active reasons.",
    )
    performance_state: float | None = reading(
        "Performance state, 0 (highest) to 15.", Call("PerformanceState", unknown=32), every=SLOW
    )
    ecc_errors_total: dict[str, float] | None = reading(
        "ECC errors since the driver was loaded.", _ecc("VOL"), every=SLOW, label=("severity", "location")
    )
    rows_remapped_total: dict[str, float] | None = reading(
        "Memory rows replaced by spares.",
        Each({"correctable": Field("REMAPPED_COR"), "uncorrectable": Field("REMAPPED_UNC")}),
        every=SLOW,
        label="cause",
        note="Ampere and later.",
    )
    row_remap_pending: float | None = reading(
        "1 when a row waits for a reset to be replaced.", Field("REMAPPED_PENDING"), every=SLOW
    )
    row_remap_failed: float | None = reading(
        "1 when a row could not be replaced: the board has to go.", Field("REMAPPED_FAILURE"), every=SLOW
    )
    xid_errors_total: dict[str, float] | None = agent(
        "Xid errors, counted over restarts of the agent; critical codes exist at 0 from the start.", label="xid"
    )
    xid_last_timestamp_seconds: dict[str, float] | None = agent("When this Xid was last seen.", label="xid")
    pcie_link_generation: float | None = reading(
        "PCIe generation in use.", Call("CurrPcieLinkGeneration"), every=SLOW, note="Falls on idle GPUs by design."
    )
    pcie_link_generation_max: float | None = reading(
        "PCIe generation that GPU and slot allow.", Call("MaxPcieLinkGeneration"), every=RARE
    )
    pcie_link_width: float | None = reading("PCIe lanes in use.", Call("CurrPcieLinkWidth"), every=SLOW)
    pcie_link_width_max: float | None = reading(
        "PCIe lanes that GPU and slot allow.", Call("MaxPcieLinkWidth"), every=RARE
    )
    pcie_replays_total: float | None = reading("PCIe packets sent again.", Field("PCIE_REPLAY_COUNTER"), every=SLOW)
    processes: float | None = reading(
        "Compute and graphics processes holding the GPU.",
        Distinct((Call("ComputeRunningProcesses"), Call("GraphicsRunningProcesses"))),
        every=SLOW,
    )
    nvlinks: float | None = reading("NVLinks that the GPU has.", Field("NVLINK_LINK_COUNT"), every=RARE)
    nvlinks_active: float | None = agent("NVLinks that carry traffic (active or asleep).")
