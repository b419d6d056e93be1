"""TABLE: the state of a simulated GPU. A scenario can set each quantity with its key `set`.

A quantity is a numeric attribute of State with a unit and bounds; None if the GPU does not support it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpumon_sim.mig import WHOLE_GPU, Layout

LINK_DOWN, LINK_ACTIVE, LINK_ASLEEP, LINK_WITHOUT_TRAFFIC = 0, 1, 2, 3
EVENT_IDLE, EVENT_POWER_CAP, EVENT_HW_SLOWDOWN, EVENT_SW_THERMAL, EVENT_HW_THERMAL = 0x1, 0x4, 0x8, 0x20, 0x40
EVENT_POWER_BRAKE = 0x80
EVENTS_SUPPORTED = 0x1FF


class Quantity(NamedTuple):
    """The unit and bounds of a quantity, for the validation of scenarios and for the documentation."""

    unit: str
    low: float
    high: float


class Process(NamedTuple):
    """A process on a simulated GPU: its GPU memory in bytes, and the ids of its GPU instance and compute instance."""

    pid: int
    memory: int
    gpu_instance: int = WHOLE_GPU
    compute_instance: int = WHOLE_GPU


class Link(NamedTuple):
    """One NVLink: its state, and the error counters that NVML reports for it.

    Up to Hopper, NVML reports `replay`, `recovery` and `crc`; from Blackwell on, `malformed_packet` to `symbol_ber`.
    """

    state: int = LINK_ACTIVE
    replay: float = 0
    recovery: float = 0
    crc: float = 0
    malformed_packet: float = 0
    buffer_overrun: float = 0
    receive: float = 0
    receive_remote: float = 0
    receive_general: float = 0
    local_link_integrity: float = 0
    transmit_discard: float = 0
    recovered: float = 0
    recovery_failed: float = 0
    effective: float = 0
    symbol: float = 0
    effective_ber: float = 0
    symbol_ber: float = 0
    speed: float | None = None
    """Speed in MB/s; None for the product's speed."""
    carried: float | None = None
    """Traffic in KiB in each direction; None for the GPU's `nvlink_transmitted` and `nvlink_received`."""


def quantity(unit: str, *, low: float = 0, high: float = 2**32 - 1) -> Any:
    """Return a dataclass field for a quantity, which a scenario can set to values from `low` to `high`."""
    return field(default=None, metadata={"quantity": Quantity(unit, low, high)})


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of one simulated GPU at one moment, from which the simulated NVML functions take their values."""

    on_bus: bool = True
    bound: str = "nvidia"
    counted: bool = True
    lost: bool = False
    lookup_code: int = 0
    """NVML return code of the GPU's handle lookup; 0 for success."""
    field_codes: Mapping[str, int] = field(default_factory=dict)
    """NVML return codes of the fields that fail in nvmlDeviceGetFieldValues, by name of the field."""
    field_types: Mapping[str, int] = field(default_factory=dict)
    """NVML's value types of the fields for which the scenario sets an unusual type, by name of the field."""
    gpm: Mapping[str, float | None] = field(default_factory=dict)
    """Values of GPM metrics that the scenario sets, by name ("*" for all others). None means not supported."""
    garbled: frozenset[str] = frozenset()
    """Names of the quantities that the scenario sets with `garbage`, which does not limit values to the bounds."""
    processes: tuple[Process, ...] = ()
    links: tuple[Link, ...] = ()
    c2c_links: tuple[int, ...] = ()
    """State of each chip-to-chip link: 1 if it works, otherwise 0."""
    peer_access: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Peer access statuses that the scenario sets, by index of the other GPU and by capability."""
    mig: Layout | None = None
    """The GPU instances, with MIG enabled; None while MIG is disabled."""
    held_back: bool = False
    """True while the power limit restricts the load."""
    load_seconds: float = 0.0
    """Integral of the load (0 to 1) over the seconds since the simulation began."""
    spin_seconds: float = 0.0
    """Seconds since the simulation began in which a kernel waited for a peer."""
    own_utilization: float = 0.0
    """GPU utilization in percent that the workload causes, even if the scenario sets another utilization."""
    own_load: float = 0.0
    """Load in percent: the same without kernels that wait for a peer."""

    utilization: float | None = quantity("%", high=100)
    memory_utilization: float | None = quantity("%", high=100)
    encoder_utilization: float | None = quantity("%", high=100)
    decoder_utilization: float | None = quantity("%", high=100)
    jpeg_utilization: float | None = quantity("%", high=100)
    ofa_utilization: float | None = quantity("%", high=100)
    memory_used: float | None = quantity("bytes", high=2**63)
    bar1_used: float | None = quantity("bytes", high=2**63)
    temperature: float | None = quantity("degrees Celsius", high=255)
    memory_temperature: float | None = quantity("degrees Celsius", high=255)
    margin: float | None = quantity("degrees Celsius to slowdown", low=-255, high=255)
    power: float | None = quantity("W, as nvmlDeviceGetPowerUsage gives it; sets the next two as well", high=4e6)
    power_now: float | None = quantity("W", high=4e6)
    power_average: float | None = quantity("W, mean of the last second", high=4e6)
    memory_power: float | None = quantity("W", high=4e6)
    module_power: float | None = quantity("W, of GPU, memory and CPU", high=4e6)
    power_limit: float | None = quantity("W", high=4e6)
    power_limit_requested: float | None = quantity("W", high=4e6)
    energy: float | None = quantity("J since the driver was loaded", high=1e16)
    graphics_clock: float | None = quantity("MHz")
    sm_clock: float | None = quantity("MHz")
    memory_clock: float | None = quantity("MHz")
    video_clock: float | None = quantity("MHz")
    clock_events: float | None = quantity("NVML's bit mask")
    sw_power_cap_seconds: float | None = quantity("s", high=1e9)
    sync_boost_seconds: float | None = quantity("s", high=1e9)
    sw_thermal_seconds: float | None = quantity("s", high=1e9)
    hw_thermal_seconds: float | None = quantity("s", high=1e9)
    hw_power_brake_seconds: float | None = quantity("s", high=1e9)
    performance_state: float | None = quantity("0 to 15, or 32 for unknown", high=32)
    fan_speed: float | None = quantity("%", high=100)
    pcie_generation: float | None = quantity("")
    pcie_width: float | None = quantity("lanes")
    slot_width: float | None = quantity("lanes of the port above the GPU, which also limit `pcie_width`")
    pcie_replays: float | None = quantity("")
    pcie_transmitted: float | None = quantity("bytes", high=2**63)
    pcie_received: float | None = quantity("bytes", high=2**63)
    pcie_errors_correctable: float | None = quantity("")
    pcie_errors_non_fatal: float | None = quantity("")
    pcie_errors_fatal: float | None = quantity("")
    pcie_errors_receiver: float | None = quantity("")
    pcie_errors_bad_tlp: float | None = quantity("")
    pcie_errors_bad_dllp: float | None = quantity("")
    pcie_errors_naks_received: float | None = quantity("")
    pcie_errors_naks_sent: float | None = quantity("")
    pcie_errors_unsupported_request: float | None = quantity("")
    pcie_errors_lcrc: float | None = quantity("")
    pcie_errors_lane: float | None = quantity("")
    pcie_errors_l0_to_recovery: float | None = quantity("")
    nvlink_transmitted: float | None = quantity("KiB of one link", high=2**53)
    nvlink_received: float | None = quantity("KiB of one link", high=2**53)
    persistence_mode: float | None = quantity("0 or 1", high=1)
    compute_mode: float | None = quantity("0 to 3", high=3)
    vgpu_licensed: float | None = quantity("0 or 1, if the GPU needs a vGPU license", high=1)
    mig_mode: float | None = quantity("0 or 1", high=1)
    mig_pending: float | None = quantity("0 or 1", high=1)
    ecc_mode: float | None = quantity("0 or 1", high=1)
    ecc_pending: float | None = quantity("0 or 1", high=1)
    recovery_action: float | None = quantity("NVML's number")
    ecc_corrected_sram: float | None = quantity("", high=2**63)
    ecc_corrected_dram: float | None = quantity("", high=2**63)
    ecc_uncorrected_sram: float | None = quantity("", high=2**63)
    ecc_uncorrected_dram: float | None = quantity("", high=2**63)
    ecc_lifetime_corrected_sram: float | None = quantity("", high=2**63)
    ecc_lifetime_corrected_dram: float | None = quantity("", high=2**63)
    ecc_lifetime_uncorrected_sram: float | None = quantity("", high=2**63)
    ecc_lifetime_uncorrected_dram: float | None = quantity("", high=2**63)
    ecc_threshold_exceeded: float | None = quantity("0 or 1", high=1)
    remap_correctable: float | None = quantity("rows")
    remap_uncorrectable: float | None = quantity("rows")
    remap_pending: float | None = quantity("0 or 1", high=1)
    remap_failed: float | None = quantity("0 or 1", high=1)
    remap_banks_max: float | None = quantity("banks")
    remap_banks_high: float | None = quantity("banks")
    remap_banks_partial: float | None = quantity("banks")
    remap_banks_low: float | None = quantity("banks")
    remap_banks_none: float | None = quantity("banks")
    retired_corrected: float | None = quantity("pages")
    retired_uncorrected: float | None = quantity("pages")
    retired_pending: float | None = quantity("0 or 1", high=1)
    repair_channel: float | None = quantity("0 or 1: a repair of a memory channel is pending", high=1)
    repair_tpc: float | None = quantity("0 or 1: a repair of a TPC is pending", high=1)
    repair_bank: float | None = quantity("0 or 1: the remapping of a memory bank is pending", high=1)
    repair_banks_spent: float | None = quantity("groups of banks without a spare bank")
    repair_impossible: float | None = quantity("0 or 1: memory cannot be repaired", high=1)
    fabric_state: float | None = quantity("0 not supported, 1 not started, 2 in progress, 3 completed", high=255)
    fabric_status: float | None = quantity("NVML's return code", high=999)
    fabric_health: float | None = quantity("NVML's mask")
    fabric_summary: float | None = quantity("0 not supported, 1 healthy, 2 unhealthy, 3 limited capacity", high=255)
    fabric_clique: float | None = quantity("")


QUANTITIES: Mapping[str, Quantity] = {
    f.name: f.metadata["quantity"] for f in dataclasses.fields(State) if "quantity" in f.metadata
}
