"""Metric table of a GPU: attributes of `Gpu` are metrics or, if declared by `identity`, labels of gpumon_gpu_info."""

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
"""Version of nvmlMemory_v2_t. Its `used` excludes the memory reserved by the driver; version 1 includes it."""

MIB = 1 << 20

FAULTS = ("lost", "missing", "reset_required", "no_permission", "stuck", "init_failed", "unknown")
"""Reasons why a GPU is not `up`: stuck and missing are from the agent, unknown from it or NVML, others from NVML."""

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

_RARE_REASONS = ("idle", "applications_clocks", "sync_boost", "display_clocks")
"""Clock event reasons that are exported only with detailed metrics: normal, rare, or caused by the operator."""

_POLICIES = ("thermal", "board_limit", "low_utilization", "reliability")
"""Performance policies of the driver that are exported. POWER, for example, is not: it equals a clock event reason."""

# The counters are in nanoseconds: nvidia-smi divides them by 1000 to print microseconds.
_CLOCK_EVENT_SOURCES = {
    reason: Either(Field(f"CLOCKS_EVENT_{reason.upper()}", scale=1e-9, bits=64), Integral("clock_event_active"))
    for reason in ("sw_power_cap", "sync_boost", "sw_thermal", "hw_thermal", "hw_power_brake")
}


DOMAINS = ("graphics", "sm", "memory", "video")
"""Clock domains in the order of their numbers in NVML."""
_LIKE_SM = ("graphics", "video")
"""Clock domains whose clock follows the SM clock. They are exported only with detailed metrics."""

PCIE_ERRORS = {
    # Width not verified: the resource manager also has a 32-bit total; which one NVML returns is not documented.
    "correctable": Field("PCIE_COUNT_CORRECTABLE_ERRORS", bits=16),
    "non_fatal": Field("PCIE_COUNT_NON_FATAL_ERROR", bits=8),
    "fatal": Field("PCIE_COUNT_FATAL_ERROR", bits=8),
    "receiver": Field("PCIE_COUNT_RECEIVER_ERROR", bits=16),
    "bad_tlp": Field("PCIE_COUNT_BAD_TLP", bits=16),
    "bad_dllp": Field("PCIE_COUNT_BAD_DLLP", bits=16),
    "naks_received": Field("PCIE_COUNT_NAKS_RECEIVED", bits=16),
    "naks_sent": Field("PCIE_COUNT_NAKS_SENT", bits=16),
    "unsupported_request": Field("PCIE_COUNT_UNSUPPORTED_REQ", bits=8),
    "lcrc": Field("PCIE_COUNT_LCRC_ERROR", bits=16),
    "lane": Field("PCIE_COUNT_LANE_ERROR", bits=16),
    "l0_to_recovery": Field("PCIE_L0_TO_RECOVERY_COUNTER", bits=16),
}
"""Source (an NVML field) of each PCIe error counter, by label value. The widths in bits are those of
NV2080_CTRL_BUS_GET_PEX_COUNTERS_PARAMS in NVIDIA's kernel module.
"""

_SPARE_ROWS = ("max", "high", "partial", "low", "none")
_LISTS = (Call("ComputeRunningProcesses"), Call("GraphicsRunningProcesses"))
_PCIE_BYTES_NOTE = "Hopper and later. The driver's own counter is not used: at 50 GB/s it wraps every 80 ms."
_GPM_NOTE = (
    "Hopper and later, from GPU performance monitoring (GPM). Absent on guests with a part of a GPU, and while GPM "
    "reports all engines idle although kernels run."
)


def _gpm(text: str, metric: str, *, scale: float = 0.01, detail: bool = False) -> Any:
    return reading(text, Gpm(metric, scale), note=_GPM_NOTE, detail=detail)


def _clocks(call: str) -> Each:
    return Each({domain: Call(call, (n,), scale=1e6) for n, domain in enumerate(DOMAINS)})


def _engine(name: str) -> Any:
    text = f"Ratio of time in which the {name} engine was active."
    short = {"encoder": "Encoder", "decoder": "Decoder", "jpeg": "Jpg", "ofa": "Ofa"}[name]
    source = Call(f"{short}Utilization", attribute=0, scale=0.01)
    return reading(text, source, every=SLOW, detail=True, unread=name in {"jpeg", "ofa"})


def _limit(text: str, field: str, *, every: Tier = RARE, detail: bool = False, unread: bool = False) -> Any:
    return reading(text, Field(field, scale=1e-3), every=every, detail=detail, unread=unread)


def _nvlink_traffic(way: str, up_to_hopper: str, from_blackwell: str) -> Any:
    return reading(
        f"Payload bytes {way} over all NVLinks.",
        Either(
            Field(up_to_hopper, scale=1024, scope=ALL_LINKS, bits=64),
            Field(from_blackwell, scope=ALL_LINKS, bits=64),
        ),
        every=SLOW,
        note="Without protocol overhead. Ampere and Hopper count in steps of 1024 bytes.",
    )


def memory_source(attribute: str) -> Either:
    """Return the source of a memory size (`total`, `used` or `free`, in bytes) of a GPU or a MIG instance."""
    return Either(Call("MemoryInfo", (MEMORY_V2,), attribute), Call("MemoryInfo", (), attribute))


def _ecc(counter: str) -> Each:
    sources: dict[str, Source] = {}
    for severity, bits in (("corrected", "SBE"), ("uncorrected", "DBE")):
        dram = Field(f"ECC_{bits}_{counter}_DEV", bits=64)
        sources[f"{severity},dram"] = dram
        sources[f"{severity},sram"] = Difference(Field(f"ECC_{bits}_{counter}_TOTAL", bits=64), dram)
    return Each(sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Readings of one GPU at one time; None if a value is unavailable. The daemon fills rows declared by `agent`."""

    PREFIX: ClassVar[str] = "gpumon_gpu_"
    LABELS: ClassVar[tuple[str, ...]] = ("gpu", "uuid")

    name: str | None = identity("Product name.", Call("Name"))
    serial: str | None = identity("Serial number of the board.", Call("Serial"))
    vbios: str | None = identity("Version of the video BIOS.", Call("VbiosVersion"))
    inforom: str | None = identity("Version of the InfoROM image.", Call("InforomImageVersion"))
    gsp: str | None = identity("Version of the GSP firmware.", Call("GspFirmwareVersion"))
    pci_bus_id: str | None = identity("PCI address.", Call("PciInfo", attribute="busId"))
    architecture: str | None = identity("Architecture.", Call("Architecture"))
    compute_capability: str | None = identity("CUDA compute capability.", Call("CudaComputeCapability"))
    minor: str | None = identity("Number of its device node, /dev/nvidia<minor>.", Call("MinorNumber"))

    up: float | None = agent("1 if this GPU answers, 0 if it does not.")
    fault: dict[str, float] | None = agent(
        "1 for the fault because of which this GPU does not answer.", label="fault", zeros=False
    )
    released: float | None = agent("1 if monitoring of this GPU is suspended by a release request.", zeros=False)
    health: float | None = agent(
        "Worst verdict about this GPU: 0 ok, 1 unknown, 2 warn, 3 fail.",
        note="Present for every GPU of the inventory, whatever the state of the driver. Use this one for scheduling.",
    )
    observed_seconds_total: float | None = agent(
        "Time in which this GPU was observed: the denominator for every accumulated counter.",
        note="Without the time in which the agent's own probe ran on it; no accumulated counter includes that time.",
    )
    recovery_action: float | None = reading(
        "Recovery action that the driver recommends: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset.",
        Field("RECOVERY_ACTION"),
        note="Ampere and later, driver 570 and later. Newer drivers add 5 (IMEX), 6 (bus reset) and 7 (reboot).",
    )
    utilization_ratio: float | None = reading(
        "Ratio of time in which at least one kernel ran.",
        Call("UtilizationRates", attribute="gpu", scale=0.01),
        note="Not the share of the GPU in use: one running thread makes it 1. Absent with MIG enabled.",
    )
    memory_utilization_ratio: float | None = reading(
        "Ratio of time in which GPU memory was read or written.",
        Call("UtilizationRates", attribute="memory", scale=0.01),
        note="Not the amount of memory in use. Absent with MIG enabled.",
    )
    busy_seconds_total: float | None = accumulated("Time in which at least one kernel ran.", of="utilization_ratio")
    sm_active_ratio: float | None = _gpm(
        "Ratio of SMs, averaged over time, with at least one resident warp.", "SM_UTIL"
    )
    sm_occupancy_ratio: float | None = _gpm("Ratio of resident warps to the maximum number of warps.", "SM_OCCUPANCY")
    tensor_active_ratio: float | None = _gpm("Ratio of time in which the tensor cores were active.", "ANY_TENSOR_UTIL")
    dram_active_ratio: float | None = _gpm("Ratio of memory bandwidth used to peak bandwidth.", "DRAM_BW_UTIL")
    graphics_active_ratio: float | None = _gpm(
        "Ratio of time in which any engine was active.", "GRAPHICS_UTIL", detail=True
    )
    fp16_active_ratio: float | None = _gpm(
        "Ratio of time in which the FP16 pipes were active.", "FP16_UTIL", detail=True
    )
    fp32_active_ratio: float | None = _gpm(
        "Ratio of time in which the FP32 pipes were active.", "FP32_UTIL", detail=True
    )
    fp64_active_ratio: float | None = _gpm(
        "Ratio of time in which the FP64 pipes were active.", "FP64_UTIL", detail=True
    )
    integer_active_ratio: float | None = _gpm(
        "Ratio of time in which the integer pipes were active.", "INTEGER_UTIL", detail=True
    )
    sm_active_seconds_total: float | None = accumulated("Integral of sm_active_ratio over time.", of="sm_active_ratio")
    tensor_active_seconds_total: float | None = accumulated(
        "Integral of tensor_active_ratio over time.", of="tensor_active_ratio"
    )
    dram_active_seconds_total: float | None = accumulated(
        "Integral of dram_active_ratio over time.", of="dram_active_ratio"
    )
    memory_total_bytes: float | None = reading("Size of the GPU memory.", memory_source("total"))
    memory_used_bytes: float | None = reading(
        "GPU memory in use.",
        memory_source("used"),
        note="Without the memory reserved by the driver; before driver 510 with it.",
    )
    memory_free_bytes: float | None = reading("Free GPU memory.", memory_source("free"), detail=True)
    memory_reserved_bytes: float | None = reading(
        "GPU memory reserved by the driver.", Call("MemoryInfo", (MEMORY_V2,), "reserved")
    )
    bar1_total_bytes: float | None = reading(
        "Size of BAR1, the window through which the host reads GPU memory.",
        Call("BAR1MemoryInfo", attribute="bar1Total"),
        every=SLOW,
        detail=True,
    )
    bar1_used_bytes: float | None = reading(
        "BAR1 memory in use.", Call("BAR1MemoryInfo", attribute="bar1Used"), every=SLOW, detail=True
    )
    temperature_celsius: float | None = reading(
        "GPU core temperature.", Either(Call("TemperatureV", (0,)), Call("Temperature", (0,)))
    )
    memory_temperature_celsius: float | None = reading(
        "GPU memory temperature.", Field("MEMORY_TEMP"), note="Boards with HBM or GDDR6X."
    )
    thermal_margin_celsius: float | None = reading(
        "Margin to the slowdown temperature.",
        Call("MarginTemperature"),
        every=SLOW,
        note="Ada and later, driver 570 and later. For the hottest spot: not the threshold minus the core temperature.",
    )
    thermal_margin_slowdown_celsius: float | None = reading(
        "Thermal margin below which the hardware reduces the clocks.",
        Field("TEMPERATURE_SLOWDOWN_TLIMIT"),
        every=RARE,
        note="Ada and later. Usually negative: at a margin of 0 the software reduces the clocks.",
        detail=True,
    )
    temperature_slowdown_celsius: float | None = reading(
        "Core temperature at which the GPU slows down.",
        Call("TemperatureThreshold", (1,), unknown=0),
        every=RARE,
        note="Up to Hopper; later GPUs report the margin only.",
    )
    temperature_shutdown_celsius: float | None = reading(
        "Core temperature at which the GPU shuts down.",
        Call("TemperatureThreshold", (0,), unknown=0),
        every=RARE,
        detail=True,
    )
    memory_temperature_max_celsius: float | None = reading(
        "Memory temperature at which the GPU slows down.",
        Call("TemperatureThreshold", (2,), unknown=0),
        every=RARE,
    )
    fan_speed_ratio: float | None = reading(
        "Requested fan speed as a ratio of its maximum.",
        Call("FanSpeed", scale=0.01),
        every=SLOW,
        note="Boards with a fan.",
    )
    power_watts: float | None = reading(
        "Average power of the GPU over the last second.",
        Either(Field("POWER_AVERAGE", scale=1e-3), Call("PowerUsage", scale=1e-3)),
        note="Instantaneous power before Ampere and on GA100. Prefer rate(gpumon_gpu_energy_joules_total).",
    )
    power_instant_watts: float | None = reading(
        "Instantaneous power of the GPU.", Field("POWER_INSTANT", scale=1e-3), every=SLOW, detail=True
    )
    module_power_watts: float | None = reading(
        "Average power of the module including the CPU.",
        Field("POWER_AVERAGE", scale=1e-3, scope=1),
        every=SLOW,
        note="Grace hosts.",
    )
    memory_power_watts: float | None = reading(
        "Average power of the GPU memory.",
        Field("POWER_AVERAGE", scale=1e-3, scope=2),
        every=SLOW,
        note="Hopper and later.",
        detail=True,
        unread=True,
    )
    power_limit_watts: float | None = reading(
        "Enforced power limit.",
        Either(Field("POWER_CURRENT_LIMIT", scale=1e-3), Call("EnforcedPowerLimit", scale=1e-3)),
        every=SLOW,
        note="Lower than the requested limit if an external cap applies, for example of the BMC.",
    )
    power_limit_requested_watts: float | None = _limit(
        "Requested power limit.", "POWER_REQUESTED_LIMIT", every=SLOW, detail=True
    )
    power_limit_default_watts: float | None = _limit("Factory default power limit.", "POWER_DEFAULT_LIMIT", detail=True)
    power_limit_min_watts: float | None = _limit(
        "Minimum configurable power limit.", "POWER_MIN_LIMIT", detail=True, unread=True
    )
    power_limit_max_watts: float | None = _limit("Maximum configurable power limit.", "POWER_MAX_LIMIT", detail=True)
    energy_joules_total: float | None = reading(
        "Energy consumed since the driver was loaded.",
        Either(Field("TOTAL_ENERGY", scale=1e-3, bits=64), Integral("power_watts")),
        every=SLOW,
        note="Before Volta and on some guests the agent integrates the power since its own start.",
    )
    clock_hertz: dict[str, float] | None = reading(
        "Current clock frequency.", _clocks("ClockInfo"), every=SLOW, label="domain", detail=_LIKE_SM, unread=True
    )
    clock_max_hertz: dict[str, float] | None = reading(
        "Maximum clock frequency.", _clocks("MaxClockInfo"), every=ONCE, label="domain", detail=(*_LIKE_SM, "memory")
    )
    clock_event_active: dict[str, float] | None = reading(
        "1 if this reason limits the clocks now, else 0.",
        Bits(Call("CurrentClocksEventReasons"), CLOCK_EVENTS, supported=Call("SupportedClocksEventReasons")),
        label="reason",
        note="`idle` is normal.",
        detail=_RARE_REASONS,
    )
    clock_event_seconds_total: dict[str, float] | None = reading(
        "Time in which this reason limited the clocks.",
        Each(_CLOCK_EVENT_SOURCES),
        every=SLOW,
        label="reason",
        note="From counters of the driver (575 and later), else integrated by the agent from the active reasons.",
        detail=("sync_boost",),
    )
    performance_limited_seconds_total: dict[str, float] | None = reading(
        "Time in which this policy of the driver limited the clocks.",
        Each({policy: Field(f"PERF_POLICY_{policy.upper()}", scale=1e-9, bits=64) for policy in _POLICIES}),
        every=SLOW,
        label="policy",
        note="DCGM reports the same counters as `*_VIOLATION`.",
        detail=True,
    )
    performance_state: float | None = reading(
        "Performance state, 0 (highest performance) to 15.",
        Call("PerformanceState", unknown=32),
        every=SLOW,
    )
    ecc_mode: float | None = reading("1 if ECC is enabled.", Field("ECC_CURRENT"), every=RARE)
    ecc_mode_pending: float | None = reading(
        "1 if ECC will be enabled after the next reset.", Field("ECC_PENDING"), every=RARE, detail=True
    )
    ecc_errors_total: dict[str, float] | None = reading(
        "ECC errors since the driver was loaded.",
        _ecc("VOL"),
        every=SLOW,
        label=("severity", "location"),
        note="Absent with ECC disabled and with MIG enabled.",
    )
    ecc_errors_lifetime_total: dict[str, float] | None = reading(
        "ECC errors over the lifetime of the board.",
        _ecc("AGG"),
        every=RARE,
        label=("severity", "location"),
        detail=("corrected,dram", "corrected,sram"),
    )
    ecc_sram_threshold_exceeded: float | None = reading(
        "1 if uncorrected SRAM errors exceed the threshold at which the board must be replaced.",
        Call("SramEccErrorStatus", attribute="bThresholdExceeded"),
        every=RARE,
        note="Ampere and later, driver 555 and later, root only.",
    )
    rows_remapped_total: dict[str, float] | None = reading(
        "Memory rows remapped to spare rows.",
        Each({"correctable": Field("REMAPPED_COR", bits=32), "uncorrectable": Field("REMAPPED_UNC", bits=32)}),
        every=SLOW,
        label="cause",
        note="Ampere and later.",
    )
    row_remap_pending: float | None = reading(
        "1 if a row remapping is pending until the next reset.",
        Field("REMAPPED_PENDING"),
        every=SLOW,
        note="Ampere and later.",
    )
    row_remap_failed: float | None = reading(
        "1 if a row remapping failed: the board must be replaced.",
        Field("REMAPPED_FAILURE"),
        every=SLOW,
        note="Ampere and later.",
    )
    row_remap_banks: dict[str, float] | None = reading(
        "Memory banks by the number of spare rows left.",
        Each({left: Call("RowRemapperHistogram", attribute=left) for left in _SPARE_ROWS}),
        every=RARE,
        label="availability",
        note="Ampere and later.",
        detail=("max", "high", "partial", "low"),
    )
    bank_groups_without_spares: float | None = reading(
        "Groups of memory banks without a spare bank.",
        Field("BANK_REMAPPER_HISTOGRAM_NONE"),
        every=RARE,
        note="Blackwell and later, driver 615 and later.",
        detail=True,
    )
    repair_pending: dict[str, float] | None = reading(
        "1 if a repair of this part is pending until the next reset.",
        Each(
            {
                "channel": Call("RepairStatus", attribute=0),
                "tpc": Call("RepairStatus", attribute=1),
                "bank": Field("PENDING_BANK_REMAPPING"),
            }
        ),
        every=RARE,
        label="part",
        note="Memory channel and TPC: Ampere and later, driver 580. Memory bank: Blackwell and later, driver 615.",
        detail=True,
    )
    memory_unrepairable: float | None = reading(
        "1 if memory cannot be repaired: the board must be replaced.",
        Call("UnrepairableMemoryFlag_v1"),
        every=RARE,
        note="Driver 580.159 and later.",
        detail=True,
    )
    retired_pages: dict[str, float] | None = reading(
        "Retired memory pages.",
        Each({"multiple_single_bit": Field("RETIRED_SBE"), "double_bit": Field("RETIRED_DBE")}),
        every=RARE,
        label="cause",
        note="Before Ampere.",
    )
    retired_pages_pending: float | None = reading(
        "1 if a page retirement is pending until the next reboot.",
        Field("RETIRED_PENDING"),
        every=RARE,
        note="Before Ampere.",
    )
    xid_errors_total: dict[str, float] | None = agent(
        "Xid errors by code, kept over restarts of the agent.",
        label="xid",
        zeros=False,
        note="Absent for a code that has not occurred: `increase()` of it misses the first error.",
    )
    xid_critical_errors_total: float | None = agent(
        "Xid errors with a critical code, kept over restarts of the agent; 0 from the start."
    )
    xid_last_timestamp_seconds: dict[str, float] | None = agent(
        "Unix time of the last Xid with this code.", label="xid"
    )
    pcie_link_generation: float | None = reading(
        "Current PCIe generation.", Call("CurrPcieLinkGeneration"), every=SLOW, note="Drops on idle GPUs by design."
    )
    pcie_link_generation_max: float | None = reading(
        "Maximum PCIe generation of GPU and slot.", Call("MaxPcieLinkGeneration"), every=RARE
    )
    pcie_link_width: float | None = reading(
        "Current number of PCIe lanes.", Call("CurrPcieLinkWidth"), every=SLOW, note="May drop on idle GPUs by design."
    )
    pcie_link_width_max: float | None = reading(
        "Maximum number of PCIe lanes of GPU and slot.",
        Call("MaxPcieLinkWidth"),
        every=RARE,
        note="NVML reports that of the GPU; the port above it is read from sysfs, if it is visible there.",
    )
    pcie_replays_total: float | None = reading(
        "PCIe packets that were sent again (replays).", Field("PCIE_REPLAY_COUNTER", bits=16), every=SLOW
    )
    pcie_receive_bytes_per_second: float | None = _gpm(
        "PCIe traffic to the GPU.", "PCIE_RX_PER_SEC", scale=MIB, detail=True
    )
    pcie_transmit_bytes_per_second: float | None = _gpm(
        "PCIe traffic from the GPU.", "PCIE_TX_PER_SEC", scale=MIB, detail=True
    )
    pcie_receive_bytes_total: float | None = accumulated(
        "Bytes received over PCIe.", of="pcie_receive_bytes_per_second", note=_PCIE_BYTES_NOTE
    )
    pcie_transmit_bytes_total: float | None = accumulated(
        "Bytes sent over PCIe.", of="pcie_transmit_bytes_per_second", note=_PCIE_BYTES_NOTE
    )
    pcie_errors_total: dict[str, float] | None = reading(
        "PCIe link errors by kind.",
        Each(PCIE_ERRORS),
        every=SLOW,
        label="kind",
        note="Hopper and later. `non_fatal`, `fatal` and `unsupported_request` stop at 255. `non_fatal` may "
        "include corrected errors.",
        detail=tuple(
            kind for kind in PCIE_ERRORS if kind not in {"correctable", "non_fatal", "fatal", "l0_to_recovery"}
        ),
        unread=True,
    )
    encoder_utilization_ratio: float | None = _engine("encoder")
    decoder_utilization_ratio: float | None = _engine("decoder")
    jpeg_utilization_ratio: float | None = _engine("jpeg")
    ofa_utilization_ratio: float | None = _engine("ofa")
    processes: float | None = reading(
        "Number of compute and graphics processes that use the GPU.",
        Distinct(_LISTS),
        every=SLOW,
        note="The slowest driver call: milliseconds per GPU.",
    )
    process_memory_bytes: dict[str, float] | None = reading(
        "GPU memory used by a process.",
        ProcessMemory(_LISTS),
        every=SLOW,
        label=("pid", "name"),
        note="Only with processes.max_per_gpu set, because process names may be confidential.",
    )
    persistence_mode: float | None = reading(
        "1 if persistence mode is enabled: the driver keeps the GPU initialised.",
        Call("PersistenceMode"),
        every=RARE,
        note="If it is disabled, the first process that opens a GPU waits 1 to 3 s.",
    )
    compute_mode: float | None = reading(
        "Compute mode: 0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process.",
        Call("ComputeMode"),
        every=RARE,
        detail=True,
    )
    vgpu_licensed: float | None = reading(
        "1 if a vGPU license is in use; 0 if none is, or if the GPU needs none.",
        Call("GridLicensableFeatures"),
        every=RARE,
        detail=True,
    )
    mig_mode: float | None = reading("1 if MIG is enabled.", Call("MigMode", attribute=0), every=SLOW)
    mig_mode_pending: float | None = reading(
        "1 if MIG will be enabled after the next reset.", Call("MigMode", attribute=1), every=SLOW, detail=True
    )
    nvlinks: float | None = reading(
        "Number of NVLinks of the GPU.",
        Field("NVLINK_LINK_COUNT"),
        every=RARE,
        note="Also for a board without a bridge.",
    )
    nvlinks_expected: float | None = agent("Number of NVLinks that should be up.")
    nvlinks_active: float | None = agent("Number of NVLinks that are up (active or asleep).")
    nvlink_errors_total: dict[str, float] | None = agent(
        "NVLink errors by kind, summed over the NVLinks of the GPU.", label="kind"
    )
    nvlink_recoveries_total: dict[str, float] | None = agent(
        "NVLink recoveries (retrainings) by result, summed over the NVLinks of the GPU.", label="result"
    )
    c2c_links_expected: float | None = agent("Number of chip-to-chip links of the GPU.", note="Grace hosts.")
    c2c_links_active: float | None = agent("Number of chip-to-chip links that are up.", note="Grace hosts.")
    nvlink_speed_bytes_per_second: float | None = reading(
        "Speed of the slowest NVLink per direction.",
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
