"""Simulates NVML's getters of a GPU: identity, utilization, memory, temperature, power, clocks, modes, PCIe link."""

from __future__ import annotations

import struct

from gpumon_sim.cmemory import check_version, put, take, whole
from gpumon_sim.codes import Code, Refusal
from gpumon_sim.exports import device_function, getter, text_getter
from gpumon_sim.layouts import UINT
from gpumon_sim.lookups import address
from gpumon_sim.mig_calls import mig_uuid
from gpumon_sim.quantities import EVENTS_SUPPORTED
from gpumon_sim.sim_gpu import SimGpu

_SAMPLE = 167_000
"""Sampling period of the encoder, decoder, JPEG and OFA utilization in microseconds."""
_PCI = struct.Struct("<16sIIIII32s")
_PCI_EXT = struct.Struct("<IIIIIIII32s")
_TEMPERATURE, _MARGIN = struct.Struct("<IIi"), struct.Struct("<Ii")
_MEMORY_V2 = struct.Struct("<I4xQQQQ")
_DISPLAY_3D = 0x03, 0x02
"""PCI class and subclass of a GPU without display outputs."""

# Identity


@text_getter("nvmlDeviceGetName", parts=True)
def name(device: SimGpu) -> str:
    return device.board.product + (f" MIG {device.part.profile}" if device.part else "")


@text_getter("nvmlDeviceGetUUID", parts=True)
def uuid(device: SimGpu) -> str:
    return mig_uuid(device.identity, device.part) if device.part else device.identity.uuid


text_getter("nvmlDeviceGetSerial")(lambda device: device.identity.serial)
text_getter("nvmlDeviceGetVbiosVersion")(lambda device: device.board.vbios)

getter("nvmlDeviceGetMinorNumber", "I")(lambda device: device.identity.number)
getter("nvmlDeviceGetArchitecture", "I")(lambda device: device.board.architecture)
getter("nvmlDeviceGetCudaComputeCapability", "i", "i")(lambda device: device.board.compute_capability)


@device_function("nvmlDeviceGetPciInfo_v3", "struct 68 0")
def pci_info(device: SimGpu, out: int | None) -> None:
    put_pci(out, device.identity.bus_id, device.board.pci_device, device.board.pci_subsystem)


def put_pci(out: int | None, bus_id: str, device: int, subsystem: int) -> None:
    """Write an nvmlPciInfo_t to `out`. `device` and `subsystem` are its PCI ids.

    If `bus_id` is not a PCI address, as for a hidden NVSwitch, the struct's domain, bus and device are 0xFFFFFFFF.
    """
    try:
        place = address(bus_id)
        legacy = bus_id[4:]
    except Refusal:
        place, legacy = (0xFFFFFFFF,) * 3, bus_id
    put(out, _PCI, legacy.encode(), *place, device, subsystem, bus_id.encode())


@device_function("nvmlDeviceGetPciInfoExt", "versioned 4", since=(550,))
def pci_info_ext(device: SimGpu, out: int | None) -> None:
    check_version(out, 1, _PCI_EXT.size)
    ids = device.board.pci_device, device.board.pci_subsystem
    bus_id = device.identity.bus_id
    put(out, _PCI_EXT, *take(out, UINT), *address(bus_id), *ids, *_DISPLAY_3D, bus_id.encode())


# Utilization and memory

getter("nvmlDeviceGetUtilizationRates", "II")(lambda d: (d.state.utilization, d.state.memory_utilization))
for _engine, _quantity in (("Encoder", "encoder"), ("Decoder", "decoder"), ("Jpg", "jpeg"), ("Ofa", "ofa")):
    getter(f"nvmlDeviceGet{_engine}Utilization", "I", "I")(
        lambda device, name=f"{_quantity}_utilization": (getattr(device.state, name), _SAMPLE)
    )


def _memory(device: SimGpu) -> tuple[float, float, float]:
    """Return the total, reserved and used memory of the GPU, or of a MIG device's GPU instance, in bytes.

    Raise Refusal if the memory in use is not supported.
    """
    board, state = device.board, device.state
    if device.part is not None:
        instance = device.part.instance
        mine = (process.memory for process in state.processes if process.gpu_instance == instance.number)
        return instance.profile.memory, 0, sum(mine)
    if state.memory_used is None:
        raise Refusal(Code.NOT_SUPPORTED)
    return board.memory_total, board.memory_reserved, state.memory_used


def _split(device: SimGpu) -> tuple[float, float, float, float]:
    """Return the total, reserved, free and used memory in bytes.

    Used memory is limited to the unreserved memory, unless the scenario's key `garbage` sets it.
    """
    total, reserved, used = _memory(device)
    if "memory_used" not in device.state.garbled:
        used = min(used, total - reserved)
    return total, reserved, max(0, total - reserved - used), used


@getter("nvmlDeviceGetMemoryInfo", "QQQ", parts=True)
def memory(device: SimGpu) -> tuple[float, ...]:
    """Return total, free and used memory in bytes. Used memory includes reserved memory, unlike in nvmlMemory_v2_t."""
    total, reserved, free, used = _split(device)
    return total, free, used + reserved


@device_function("nvmlDeviceGetMemoryInfo_v2", "versioned 4", since=(510,), parts=True)
def memory_v2(device: SimGpu, out: int | None) -> None:
    check_version(out, 2, _MEMORY_V2.size)
    put(out, _MEMORY_V2, *take(out, UINT), *(whole(number, "Q") for number in _split(device)))


@getter("nvmlDeviceGetBAR1MemoryInfo", "QQQ", parts=True)
def bar1(device: SimGpu) -> tuple[float, ...] | None:
    """Return the total, free and used BAR1 memory in bytes; None if it is not supported.

    A MIG device has a share of the total, all of it free.
    """
    total, used = device.board.bar1_total, device.state.bar1_used
    if device.part is not None:
        return total * device.part.instance.profile.slices // 8, total * device.part.instance.profile.slices // 8, 0
    return None if used is None else (total, max(0, total - used), used)


getter("nvmlDeviceGetConfComputeMemSizeInfo", "QQ", since=(535,))(lambda device: (0, device.board.memory_total >> 10))

# Temperature, power, clocks


@device_function("nvmlDeviceGetTemperatureV", "versioned 8", since=(570,))
def temperature_v(device: SimGpu, out: int | None) -> None:
    check_version(out, 1, _TEMPERATURE.size)
    version, sensor, _ = take(out, _TEMPERATURE)
    if sensor or device.state.temperature is None:
        raise Refusal(Code.INVALID_ARGUMENT if sensor else Code.NOT_SUPPORTED)
    put(out, _TEMPERATURE, version, sensor, whole(device.state.temperature, "i"))


@getter("nvmlDeviceGetTemperature", "I", takes=["u4"])
def temperature(device: SimGpu, sensor: int) -> float | None:
    if sensor:
        raise Refusal(Code.INVALID_ARGUMENT)
    return device.state.temperature


@device_function("nvmlDeviceGetMarginTemperature", "versioned 4", since=(570,))
def margin_temperature(device: SimGpu, out: int | None) -> None:
    check_version(out, 1, _MARGIN.size)
    if device.state.margin is None:
        raise Refusal(Code.NOT_SUPPORTED)
    put(out, _MARGIN, *take(out, UINT), whole(device.state.margin, "i"))


@getter("nvmlDeviceGetTemperatureThreshold", "I", takes=["u4"])
def temperature_threshold(device: SimGpu, threshold: int) -> float | None:
    thresholds = device.board.thresholds if device.board.thresholds_reported else ()
    return thresholds[threshold] if threshold < len(thresholds) else None


def _milli(value: float | None) -> float | None:
    return None if value is None else value * 1000


getter("nvmlDeviceGetPowerUsage", "I")(lambda device: _milli(device.state.power))
getter("nvmlDeviceGetEnforcedPowerLimit", "I")(lambda device: _milli(device.state.power_limit))
getter("nvmlDeviceGetPowerManagementLimit", "I")(lambda device: _milli(device.state.power_limit_requested))
getter("nvmlDeviceGetPowerManagementDefaultLimit", "I")(lambda device: _milli(device.board.power_limit))
getter("nvmlDeviceGetPowerManagementLimitConstraints", "I", "I")(
    lambda device: (device.board.power_limit_min * 1000, device.board.power_limit * 1000)
)
getter("nvmlDeviceGetTotalEnergyConsumption", "Q")(lambda device: _milli(device.state.energy))


@getter("nvmlDeviceGetClockInfo", "I", takes=["u4"])
def clock(device: SimGpu, domain: int) -> float | None:
    state = device.state
    clocks = state.graphics_clock, state.sm_clock, state.memory_clock, state.video_clock
    return clocks[_domain(domain)]


@getter("nvmlDeviceGetMaxClockInfo", "I", takes=["u4"])
def max_clock(device: SimGpu, domain: int) -> float:
    return device.board.clocks_max[_domain(domain)]


def _domain(domain: int) -> int:
    if domain > 3:
        raise Refusal(Code.INVALID_ARGUMENT)
    return domain


for _word, _since in (("Throttle", ()), ("Event", (535,))):
    getter(f"nvmlDeviceGetCurrentClocks{_word}Reasons", "Q", since=_since)(lambda device: device.state.clock_events)
    getter(f"nvmlDeviceGetSupportedClocks{_word}Reasons", "Q", since=_since)(lambda _: EVENTS_SUPPORTED)

# Modes and the PCIe link

getter("nvmlDeviceGetPerformanceState", "I")(lambda device: device.state.performance_state)
getter("nvmlDeviceGetPersistenceMode", "I")(lambda device: device.state.persistence_mode)
getter("nvmlDeviceGetComputeMode", "I")(lambda device: device.state.compute_mode)
getter("nvmlDeviceGetFanSpeed", "I")(lambda device: device.state.fan_speed)
getter("nvmlDeviceGetCurrPcieLinkGeneration", "I")(lambda device: device.state.pcie_generation)
getter("nvmlDeviceGetMaxPcieLinkGeneration", "I")(lambda device: device.board.pcie_generation)


@getter("nvmlDeviceGetCurrPcieLinkWidth", "I")
def pcie_width(device: SimGpu) -> float | None:
    """Return the number of PCIe lanes in use, which a narrow slot limits.

    NVML's maximum width does not show a narrow slot, because it is the maximum of the GPU. Observed on real hosts:
    club-3090 issues 642 and 707 (x8 and x4 slots), a Tesla M10 and a GTX 1050 with 8 of 16 lanes.
    """
    width, slot = device.state.pcie_width, device.state.slot_width
    return width if width is None or slot is None else min(width, slot)


getter("nvmlDeviceGetMaxPcieLinkWidth", "I")(lambda device: device.board.pcie_width)
getter("nvmlDeviceGetPcieReplayCounter", "I")(lambda device: device.state.pcie_replays)
