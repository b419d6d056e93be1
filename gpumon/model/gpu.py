"""TABLE: what is read of each GPU. A metric is added by adding a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gpumon.model.reading import (
    ALL_LINKS,
    ONCE,
    RARE,
    SLOW,
    Bits,
    Call,
    Difference,
    Distinct,
    Each,
    Either,
    Field,
    Gpm,
    Integral,
    LinkField,
    ProcessMemory,
    Slowest,
    Source,
    Tier,
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
    "board_limit": 0x200,
    "reliability": 0x400,
}

_SELDOM = ("applications_clocks", "sync_boost", "display_clocks")
"""Reasons that GPUs for computing hardly ever have, or that somebody has set."""

# The header gives these counters in nanoseconds; nvidia-smi prints them as microseconds. Not yet seen on hardware.
_CLOCK_EVENT_SOURCES = {
    reason: Either(Field(f"CLOCKS_EVENT_{reason.upper()}", scale=1e-9), Integral("clock_event_active"))
    for reason in ("sw_power_cap", "sync_boost", "sw_thermal", "hw_thermal", "hw_power_brake")
}


DOMAINS = ("graphics", "sm", "memory", "video")
"""Clock domains, in the order of NVML's numbers."""
_LIKE_SM = ("graphics", "video")
"""Domains that follow the SMs'."""

PCIE_ERRORS = {
    "correctable": "PCIE_COUNT_CORRECTABLE_ERRORS",
    "non_fatal": "PCIE_COUNT_NON_FATAL_ERROR",
    "fatal": "PCIE_COUNT_FATAL_ERROR",
    "receiver": "PCIE_COUNT_RECEIVER_ERROR",
    "bad_tlp": "PCIE_COUNT_BAD_TLP",
    "bad_dllp": "PCIE_COUNT_BAD_DLLP",
    "naks_received": "PCIE_COUNT_NAKS_RECEIVED",
    "naks_sent": "PCIE_COUNT_NAKS_SENT",
    "unsupported_request": "PCIE_COUNT_UNSUPPORTED_REQ",
    "lcrc": "PCIE_COUNT_LCRC_ERROR",
    "lane": "PCIE_COUNT_LANE_ERROR",
    "l0_to_recovery": "PCIE_L0_TO_RECOVERY_COUNTER",
}

_SPARE_ROWS = ("max", "high", "partial", "low", "none")
_LISTS = (Call("ComputeRunningProcesses"), Call("GraphicsRunningProcesses"))
_GPM_NOTE = (
    "Hopper and later, from GPU performance monitoring; absent on guests with a share of a GPU, and while all engines "
    "are said to be idle though kernels run."
)


def _gpm(text: str, metric: str, *, detail: bool = False) -> Any:
    return reading(text, Gpm(metric), note=_GPM_NOTE, detail=detail)


def _clocks(call: str) -> Each:
    return Each({domain: Call(call, (n,), scale=1e6) for n, domain in enumerate(DOMAINS)})


def _engine(name: str) -> Any:
    text = f"Share of time in which the {name} engine worked."
    short = {"encoder": "Encoder", "decoder": "Decoder", "jpeg": "Jpg", "ofa": "Ofa"}[name]
    return reading(text, Call(f"{short}Utilization", attribute=0, scale=0.01), every=SLOW, detail=True)


def _limit(text: str, field: str, *, every: Tier = RARE, detail: bool = False) -> Any:
    return reading(text, Field(field, scale=1e-3), every=every, detail=detail)


def _nvlink_traffic(way: str, up_to_hopper: str, from_blackwell: str) -> Any:
    return reading(
        f"Payload {way} over all NVLinks.",
        Either(Field(up_to_hopper, scale=1024, scope=ALL_LINKS), Field(from_blackwell, scope=ALL_LINKS)),
        note="Without the protocol's own bytes. Ampere and Hopper count in steps of 1024.",
    )


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
    inforom: str | None = identity("Version of the InfoROM image.", Call("InforomImageVersion"))
    gsp: str | None = identity("Version of the firmware of the system processor.", Call("GspFirmwareVersion"))
    pci_bus_id: str | None = identity("PCI address.", Call("PciInfo", attribute="busId"))
    architecture: str | None = identity("Architecture.", Call("Architecture"))
    compute_capability: str | None = identity("CUDA compute capability.", Call("CudaComputeCapability"))
    minor: str | None = identity("Number of its device node, /dev/nvidia<minor>.", Call("MinorNumber"))

    up: float | None = agent("1 when this GPU answers, 0 when it does not.")
    fault: dict[str, float] | None = agent("1 for the reason why this GPU does not answer.", label="fault")
    released: float | None = agent("1 while the agent keeps off this GPU because it was asked to.")
    health: float | None = agent(
        "The worst verdict about this GPU: 0 ok, 1 unknown, 2 warn, 3 fail.",
        note="For every GPU of the inventory, whatever the driver does. A scheduler wants this one.",
    )
    observed_seconds_total: float | None = agent(
        "Time this GPU was watched: the denominator for every accumulated counter.",
        note="Without the time in which the agent's own probe ran on it, which no accumulated counter counts either.",
    )
    recovery_action: float | None = reading(
        "The driver's own advice: 0 none, 1 reset, 2 reboot, 3 drain peer to peer, 4 drain and reset.",
        Field("RECOVERY_ACTION"),
        note="Ampere and later, driver 570 and later. Newer drivers add 5 (IMEX), 6 (bus reset) and 7 (reboot).",
    )
    utilization_ratio: float | None = reading(
        "Share of time in which a kernel ran, however small.",
        Call("UtilizationRates", attribute="gpu", scale=0.01),
        note="Not the share of the GPU in use: one thread makes it 1. Absent with MIG on.",
    )
    memory_utilization_ratio: float | None = reading(
        "Share of time in which memory was read or written.",
        Call("UtilizationRates", attribute="memory", scale=0.01),
        note="Not occupancy. Absent with MIG on.",
    )
    busy_seconds_total: float | None = accumulated("Time with a kernel running.", of="utilization_ratio")
    sm_active_ratio: float | None = _gpm("Share of time and multiprocessors with a warp resident.", "SM_UTIL")
    sm_occupancy_ratio: float | None = _gpm("Resident warps, as a share of what would fit.", "SM_OCCUPANCY")
    tensor_active_ratio: float | None = _gpm("Share of time in which the tensor cores worked.", "ANY_TENSOR_UTIL")
    dram_active_ratio: float | None = _gpm("Share of the memory bandwidth in use.", "DRAM_BW_UTIL")
    graphics_active_ratio: float | None = _gpm("Share of time with any engine at work.", "GRAPHICS_UTIL", detail=True)
    fp16_active_ratio: float | None = _gpm("Share of time in which the FP16 pipes worked.", "FP16_UTIL", detail=True)
    fp32_active_ratio: float | None = _gpm("Share of time in which the FP32 pipes worked.", "FP32_UTIL", detail=True)
    fp64_active_ratio: float | None = _gpm("Share of time in which the FP64 pipes worked.", "FP64_UTIL", detail=True)
    integer_active_ratio: float | None = _gpm(
        "Share of time in which the integer pipes worked.", "INTEGER_UTIL", detail=True
    )
    sm_active_seconds_total: float | None = accumulated("Multiprocessor time in use.", of="sm_active_ratio")
    tensor_active_seconds_total: float | None = accumulated("Tensor core time in use.", of="tensor_active_ratio")
    dram_active_seconds_total: float | None = accumulated("Memory bandwidth in use.", of="dram_active_ratio")
    memory_total_bytes: float | None = reading("Size of the GPU's memory.", _memory("total"))
    memory_used_bytes: float | None = reading(
        "Memory allocated.",
        _memory("used"),
        note="Without what the driver keeps for itself; before driver 510 with it.",
    )
    memory_free_bytes: float | None = reading("Memory free.", _memory("free"), detail=True)
    memory_reserved_bytes: float | None = reading(
        "Memory the driver keeps for itself.", Call("MemoryInfo", (MEMORY_V2,), "reserved")
    )
    bar1_total_bytes: float | None = reading(
        "Size of the window through which the host reaches the memory.",
        Call("BAR1MemoryInfo", attribute="bar1Total"),
        every=SLOW,
        detail=True,
    )
    bar1_used_bytes: float | None = reading(
        "Part of that window in use.", Call("BAR1MemoryInfo", attribute="bar1Used"), every=SLOW, detail=True
    )
    temperature_celsius: float | None = reading(
        "GPU core temperature.", Either(Call("TemperatureV", (0,)), Call("Temperature", (0,)))
    )
    memory_temperature_celsius: float | None = reading(
        "Memory temperature.", Field("MEMORY_TEMP"), note="Boards with HBM or GDDR6X."
    )
    thermal_margin_celsius: float | None = reading(
        "Degrees left until the GPU slows down.",
        Call("MarginTemperature"),
        every=SLOW,
        note="Ada and later, driver 570 and later. Of the hottest spot, so not threshold less core temperature.",
    )
    temperature_slowdown_celsius: float | None = reading(
        "Core temperature at which the GPU slows down.",
        Call("TemperatureThreshold", (1,)),
        every=RARE,
        note="Up to Hopper; then there is the margin alone.",
    )
    temperature_shutdown_celsius: float | None = reading(
        "Core temperature at which the GPU shuts down.", Call("TemperatureThreshold", (0,)), every=RARE, detail=True
    )
    memory_temperature_max_celsius: float | None = reading(
        "Memory temperature at which the GPU slows down.", Call("TemperatureThreshold", (2,)), every=RARE
    )
    fan_speed_ratio: float | None = reading(
        "Speed of the fan that the GPU asks for.",
        Call("FanSpeed", scale=0.01),
        every=SLOW,
        note="Boards with a fan of their own.",
    )
    power_watts: float | None = reading(
        "Mean power over the last second.",
        Either(Field("POWER_AVERAGE", scale=1e-3), Call("PowerUsage", scale=1e-3)),
        note="Before Ampere, and on GA100: power at the moment. Prefer rate(gpumon_gpu_energy_joules_total).",
    )
    power_instant_watts: float | None = reading(
        "Power at this moment.", Field("POWER_INSTANT", scale=1e-3), detail=True
    )
    module_power_watts: float | None = reading(
        "Mean power of the module, CPU included.",
        Field("POWER_AVERAGE", scale=1e-3, scope=1),
        note="Grace hosts.",
    )
    memory_power_watts: float | None = reading(
        "Mean power of the memory.", Field("POWER_AVERAGE", scale=1e-3, scope=2), note="Hopper and later.", detail=True
    )
    power_limit_watts: float | None = reading(
        "Power limit enforced.",
        Either(Field("POWER_CURRENT_LIMIT", scale=1e-3), Call("EnforcedPowerLimit", scale=1e-3)),
        every=SLOW,
        note="Lower than what was asked for when a cap from outside, such as the BMC's, holds.",
    )
    power_limit_requested_watts: float | None = _limit(
        "Power limit asked for.", "POWER_REQUESTED_LIMIT", every=SLOW, detail=True
    )
    power_limit_default_watts: float | None = _limit(
        "Power limit of the board as it is sold.", "POWER_DEFAULT_LIMIT", detail=True
    )
    power_limit_min_watts: float | None = _limit("Lowest limit that can be asked for.", "POWER_MIN_LIMIT", detail=True)
    power_limit_max_watts: float | None = _limit("Highest limit that can be asked for.", "POWER_MAX_LIMIT", detail=True)
    energy_joules_total: float | None = reading(
        "Energy since the driver was loaded.",
        Either(Field("TOTAL_ENERGY", scale=1e-3), Integral("power_watts")),
        note="Before Volta and on some guests: power integrated by the agent since its start. Else it starts anew with "
        "the driver.",
    )
    clock_hertz: dict[str, float] | None = reading(
        "Current clock.", _clocks("ClockInfo"), every=SLOW, label="domain", detail=_LIKE_SM
    )
    clock_max_hertz: dict[str, float] | None = reading(
        "Highest clock.", _clocks("MaxClockInfo"), every=ONCE, label="domain", detail=_LIKE_SM
    )
    clock_event_active: dict[str, float] | None = reading(
        "1 while this reason holds the clocks down.",
        Bits(Call("CurrentClocksEventReasons"), CLOCK_EVENTS, supported=Call("SupportedClocksEventReasons")),
        label="reason",
        note="`idle` is normal.",
        detail=_SELDOM,
    )
    clock_event_seconds_total: dict[str, float] | None = reading(
        "Time in which this reason held the clocks down.",
        Each(_CLOCK_EVENT_SOURCES),
        label="reason",
        note="From the driver's counters where it has them (575 and later), else integrated from the active reasons.",
        detail=("sync_boost",),
    )
    performance_state: float | None = reading(
        "Performance state, 0 (highest) to 15.", Call("PerformanceState", unknown=32), every=SLOW, detail=True
    )
    ecc_mode: float | None = reading("1 when ECC is on.", Field("ECC_CURRENT"), every=RARE)
    ecc_mode_pending: float | None = reading(
        "1 when ECC will be on after a reset.", Field("ECC_PENDING"), every=RARE, detail=True
    )
    ecc_errors_total: dict[str, float] | None = reading(
        "ECC errors since the driver was loaded.",
        _ecc("VOL"),
        every=SLOW,
        label=("severity", "location"),
        note="Absent with ECC off, and with MIG on.",
    )
    ecc_errors_lifetime_total: dict[str, float] | None = reading(
        "ECC errors over the life of the board.",
        _ecc("AGG"),
        every=RARE,
        label=("severity", "location"),
        detail=("corrected,dram", "corrected,sram"),
    )
    ecc_sram_threshold_exceeded: float | None = reading(
        "1 when the SRAM had so many uncorrected errors that the board has to go.",
        Call("SramEccErrorStatus", attribute="bThresholdExceeded"),
        every=RARE,
        note="Ampere and later, driver 555 and later, root only.",
    )
    rows_remapped_total: dict[str, float] | None = reading(
        "Memory rows replaced by spares.",
        Each({"correctable": Field("REMAPPED_COR"), "uncorrectable": Field("REMAPPED_UNC")}),
        every=SLOW,
        label="cause",
        note="Ampere and later.",
    )
    row_remap_pending: float | None = reading(
        "1 when a row waits for a reset to be replaced.",
        Field("REMAPPED_PENDING"),
        every=SLOW,
        note="Ampere and later.",
    )
    row_remap_failed: float | None = reading(
        "1 when a row could not be replaced: the board has to go.",
        Field("REMAPPED_FAILURE"),
        every=SLOW,
        note="Ampere and later.",
    )
    row_remap_banks: dict[str, float] | None = reading(
        "Memory banks by the spare rows they have left.",
        Each({left: Call("RowRemapperHistogram", attribute=left) for left in _SPARE_ROWS}),
        every=RARE,
        label="availability",
        note="Ampere and later.",
        detail=("max", "high", "partial"),
    )
    retired_pages: dict[str, float] | None = reading(
        "Memory pages taken out of use.",
        Each({"multiple_single_bit": Field("RETIRED_SBE"), "double_bit": Field("RETIRED_DBE")}),
        every=RARE,
        label="cause",
        note="Before Ampere.",
    )
    retired_pages_pending: float | None = reading(
        "1 when a page waits for a reboot to be taken out of use.",
        Field("RETIRED_PENDING"),
        every=RARE,
        note="Before Ampere.",
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
    pcie_receive_bytes_total: float | None = reading(
        "Bytes received over PCIe.",
        Field("PCIE_COUNT_RX_BYTES"),
        note="Driver 555 and later. The driver's counter may wrap.",
    )
    pcie_transmit_bytes_total: float | None = reading(
        "Bytes sent over PCIe.",
        Field("PCIE_COUNT_TX_BYTES"),
        note="Driver 555 and later. The driver's counter may wrap.",
    )
    pcie_errors_total: dict[str, float] | None = reading(
        "Errors of the PCIe link.",
        Each({kind: Field(field) for kind, field in PCIE_ERRORS.items()}),
        every=SLOW,
        label="kind",
        note="Hopper and later.",
        detail=tuple(
            kind for kind in PCIE_ERRORS if kind not in {"correctable", "non_fatal", "fatal", "l0_to_recovery"}
        ),
    )
    encoder_utilization_ratio: float | None = _engine("encoder")
    decoder_utilization_ratio: float | None = _engine("decoder")
    jpeg_utilization_ratio: float | None = _engine("jpeg")
    ofa_utilization_ratio: float | None = _engine("ofa")
    processes: float | None = reading(
        "Compute and graphics processes holding the GPU.",
        Distinct(_LISTS),
        every=SLOW,
        note="The slowest of the driver's calls: milliseconds a GPU.",
    )
    process_memory_bytes: dict[str, float] | None = reading(
        "GPU memory of a process.",
        ProcessMemory(_LISTS),
        every=SLOW,
        label=("pid", "name"),
        note="Only with processes.max_per_gpu set: names of processes are not for everyone.",
    )
    persistence_mode: float | None = reading(
        "1 when the driver keeps the GPU initialised.",
        Call("PersistenceMode"),
        every=RARE,
        note="Off, whoever comes first waits 1 to 3 s for each GPU.",
    )
    compute_mode: float | None = reading(
        "0 default, 1 one thread, 2 no compute, 3 one process.", Call("ComputeMode"), every=RARE, detail=True
    )
    mig_mode: float | None = reading("1 when MIG is on.", Call("MigMode", attribute=0), every=SLOW)
    mig_mode_pending: float | None = reading(
        "1 when MIG will be on after a reset.", Call("MigMode", attribute=1), every=SLOW, detail=True
    )
    nvlinks: float | None = reading(
        "NVLinks that the GPU has.", Field("NVLINK_LINK_COUNT"), every=RARE, note="Of a board without a bridge as well."
    )
    nvlinks_active: float | None = agent("NVLinks that carry traffic (active or asleep).")
    nvlink_speed_bytes_per_second: float | None = reading(
        "Speed of its slowest NVLink, each way.",
        Slowest(LinkField("NVLINK_GET_SPEED", scale=1e6)),
        every=SLOW,
        note="25 GB/s on A100, 26.6 on H100, 53.1 on Blackwell.",
    )
    nvlink_receive_bytes_total: float | None = _nvlink_traffic(
        "received", "NVLINK_THROUGHPUT_DATA_RX", "NVLINK_COUNT_RCV_BYTES"
    )
    nvlink_transmit_bytes_total: float | None = _nvlink_traffic(
        "sent", "NVLINK_THROUGHPUT_DATA_TX", "NVLINK_COUNT_XMIT_BYTES"
    )
