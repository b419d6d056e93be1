"""NVML's functions: library, handle lookup, getters. A function is added by writing it below its decorator."""

from __future__ import annotations

import ctypes
import re
import struct
from functools import cache

from gpumon.sim.cmemory import check_version, put, put_text, take
from gpumon.sim.codes import Code, Refusal
from gpumon.sim.device import Device
from gpumon.sim.exports import POINTER, UINT, device_function, function, getter, text_getter
from gpumon.sim.node import Node
from gpumon.sim.state import EVENTS_SUPPORTED, LINK_DOWN

_UINT, _POINTER = struct.Struct("<I"), struct.Struct("<Q")
_NO_GPUS = 1
"""Flag of nvmlInitWithFlags: do not fail when there are none."""
_SAMPLE = 167_000
"""Microseconds over which engines are sampled."""
_PCI = struct.Struct("<16sIIIII32s")
_TEMPERATURE, _MARGIN = struct.Struct("<IIi"), struct.Struct("<Ii")
_MEMORY_V2 = struct.Struct("<I4xQQQQ")
_PROCESS = struct.Struct("<I4xQII")
_WHOLE_GPU = 0xFFFFFFFF
_BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.0)?", re.IGNORECASE)

# Library


@function("nvmlInitWithFlags", UINT)
def init_with_flags(node: Node, flags: int) -> None:
    node.gate("nvmlInitWithFlags")
    node.initialise(may_be_empty=bool(flags & _NO_GPUS))


@function("nvmlInit_v2")
def init(node: Node) -> None:
    node.gate("nvmlInit_v2")
    node.initialise(may_be_empty=False)


@function("nvmlShutdown")
def shutdown(node: Node) -> None:
    node.enter("nvmlShutdown")
    node.shut_down()


@function("nvmlErrorString", ctypes.c_int, gives=ctypes.c_void_p)
def error_string(_node: Node, code: int) -> int:
    return ctypes.addressof(_words(code))


@cache
def _words(code: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer((Code(code) if code in set(Code) else Code.UNKNOWN).words.encode())


@function("nvmlSystemGetDriverVersion", POINTER, UINT)
def driver_version(node: Node, buffer: int | None, length: int) -> None:
    node.enter("nvmlSystemGetDriverVersion")
    put_text(buffer, length, node.scenario().driver)


@function("nvmlSystemGetNVMLVersion", POINTER, UINT)
def nvml_version(node: Node, buffer: int | None, length: int) -> None:
    node.enter("nvmlSystemGetNVMLVersion")
    put_text(buffer, length, node.profile.nvml)


@function("nvmlSystemGetCudaDriverVersion", POINTER)
def cuda_version(node: Node, out: int | None) -> None:
    node.enter("nvmlSystemGetCudaDriverVersion")
    put(out, _UINT, node.profile.cuda)


@function("nvmlSystemGetCudaDriverVersion_v2", POINTER)
def cuda_version_v2(node: Node, out: int | None) -> None:
    node.enter("nvmlSystemGetCudaDriverVersion_v2")
    put(out, _UINT, node.profile.cuda)


# Count and handles


@function("nvmlDeviceGetCount_v2", POINTER)
def count(node: Node, out: int | None) -> None:
    node.enter("nvmlDeviceGetCount_v2")
    put(out, _UINT, len(node.counted()))


@function("nvmlDeviceGetHandleByIndex_v2", UINT, POINTER)
def handle_by_index(node: Node, index: int, out: int | None) -> None:
    node.need_initialised()
    counted = node.counted()
    if index >= len(counted):
        raise Refusal(Code.INVALID_ARGUMENT)
    put(out, _POINTER, node.look_up("nvmlDeviceGetHandleByIndex_v2", counted[index]))


@function("nvmlDeviceGetHandleByPciBusId_v2", ctypes.c_char_p, POINTER)
def handle_by_bus_id(node: Node, bus_id: bytes | None, out: int | None) -> None:
    node.need_initialised()
    wanted = _address((bus_id or b"").decode(errors="replace"))
    found = [gpu for gpu in node.counted() if _address(node.profile.bus_ids[gpu]) == wanted]
    if not found:
        raise Refusal(Code.NOT_FOUND)
    put(out, _POINTER, node.look_up("nvmlDeviceGetHandleByPciBusId_v2", found[0]))


@function("nvmlDeviceGetHandleByUUID", ctypes.c_char_p, POINTER)
def handle_by_uuid(node: Node, uuid: bytes | None, out: int | None) -> None:
    node.need_initialised()
    counted = node.counted()
    if any(node.state(gpu).lost for gpu in counted):  # as documented: one lost GPU spoils this lookup for all
        raise Refusal(Code.GPU_IS_LOST)
    wanted = (uuid or b"").decode(errors="replace")
    found = [gpu for gpu in counted if node.identities()[gpu].uuid == wanted]
    if not found:
        raise Refusal(Code.NOT_FOUND)
    put(out, _POINTER, node.look_up("nvmlDeviceGetHandleByUUID", found[0]))


def _address(bus_id: str) -> tuple[int, int, int]:
    """Domain, bus and device."""
    parts = _BUS_ID.fullmatch(bus_id)
    if not parts:
        raise Refusal(Code.INVALID_ARGUMENT)
    domain, bus, device = (int(part or "0", 16) for part in parts.groups())
    return domain, bus, device


@function("nvmlDeviceGetIndex", POINTER, POINTER)
def index(node: Node, handle: int | None, out: int | None) -> None:
    device = node.device("nvmlDeviceGetIndex", handle)
    counted = node.counted()
    if device.identity.number not in counted:
        raise Refusal(Code.GPU_NOT_FOUND)
    put(out, _UINT, counted.index(device.identity.number))


# Identity

text_getter("nvmlDeviceGetName")(lambda device: device.profile.product)
text_getter("nvmlDeviceGetUUID")(lambda device: device.identity.uuid)
text_getter("nvmlDeviceGetSerial")(lambda device: device.identity.serial)
text_getter("nvmlDeviceGetVbiosVersion")(lambda device: device.profile.vbios)

getter("nvmlDeviceGetMinorNumber", "I")(lambda device: device.identity.number)
getter("nvmlDeviceGetArchitecture", "I")(lambda device: device.profile.architecture)
getter("nvmlDeviceGetCudaComputeCapability", "i", "i")(lambda device: device.profile.compute_capability)


@device_function("nvmlDeviceGetPciInfo_v3", POINTER)
def pci_info(device: Device, out: int | None) -> None:
    bus_id = device.identity.bus_id
    legacy = bus_id[4:].encode()
    ids = device.profile.pci_device, device.profile.pci_subsystem
    put(out, _PCI, legacy, *_address(bus_id), *ids, bus_id.encode())


# Utilization and memory

getter("nvmlDeviceGetUtilizationRates", "II")(lambda d: _both(d.state.utilization, d.state.memory_utilization))
getter("nvmlDeviceGetEncoderUtilization", "I", "I")(lambda d: _both(d.state.encoder_utilization, _SAMPLE))
getter("nvmlDeviceGetDecoderUtilization", "I", "I")(lambda d: _both(d.state.decoder_utilization, _SAMPLE))


def _both(*values: float | None) -> tuple[float | None, ...] | None:
    """All of them, or None when one is not supported."""
    return None if None in values else values


def _used(device: Device) -> int:
    if device.state.memory_used is None:
        raise Refusal(Code.NOT_SUPPORTED)
    return min(round(device.state.memory_used), device.profile.memory_total - device.profile.memory_reserved)


@getter("nvmlDeviceGetMemoryInfo", "QQQ")
def memory(device: Device) -> tuple[int, ...]:
    """Total, free, used. The first version counts what the driver reserves as used."""
    total, used = device.profile.memory_total, _used(device) + device.profile.memory_reserved
    return total, total - used, used


@device_function("nvmlDeviceGetMemoryInfo_v2", POINTER, since=(510,))
def memory_v2(device: Device, out: int | None) -> None:
    check_version(out, 2, _MEMORY_V2.size)
    used, total, reserved = _used(device), device.profile.memory_total, device.profile.memory_reserved
    put(out, _MEMORY_V2, *take(out, _UINT), total, reserved, total - reserved - used, used)


@getter("nvmlDeviceGetBAR1MemoryInfo", "QQQ")
def bar1(device: Device) -> tuple[float, ...] | None:
    total, used = device.profile.bar1_total, device.state.bar1_used
    return None if used is None else (total, max(0, total - used), used)


def _processes(device: Device, size: int | None, array: int | None) -> None:
    running = device.state.processes
    (room,) = take(size, _UINT)
    put(size, _UINT, len(running))
    if len(running) > room:
        raise Refusal(Code.INSUFFICIENT_SIZE)
    for n, process in enumerate(running):
        put((array or 0) + n * _PROCESS.size, _PROCESS, *process, _WHOLE_GPU, _WHOLE_GPU)


def _no_processes(_device: Device, size: int | None, _array: int | None) -> None:
    put(size, _UINT, 0)


device_function("nvmlDeviceGetComputeRunningProcesses_v3", POINTER, POINTER, since=(510,))(_processes)
device_function("nvmlDeviceGetGraphicsRunningProcesses_v3", POINTER, POINTER, since=(510,))(_no_processes)

# Temperature, power, clocks


@device_function("nvmlDeviceGetTemperatureV", POINTER, since=(570,))
def temperature_v(device: Device, out: int | None) -> None:
    check_version(out, 1, _TEMPERATURE.size)
    version, sensor, _ = take(out, _TEMPERATURE)
    if sensor or device.state.temperature is None:
        raise Refusal(Code.INVALID_ARGUMENT if sensor else Code.NOT_SUPPORTED)
    put(out, _TEMPERATURE, version, sensor, round(device.state.temperature))


@getter("nvmlDeviceGetTemperature", "I", takes=[UINT])
def temperature(device: Device, sensor: int) -> float | None:
    if sensor:
        raise Refusal(Code.INVALID_ARGUMENT)
    return device.state.temperature


@device_function("nvmlDeviceGetMarginTemperature", POINTER, since=(570,))
def margin_temperature(device: Device, out: int | None) -> None:
    check_version(out, 1, _MARGIN.size)
    if device.state.margin is None:
        raise Refusal(Code.NOT_SUPPORTED)
    put(out, _MARGIN, *take(out, _UINT), round(device.state.margin))


@getter("nvmlDeviceGetTemperatureThreshold", "I", takes=[UINT])
def temperature_threshold(device: Device, threshold: int) -> float | None:
    thresholds = device.profile.thresholds
    return thresholds[threshold] if threshold < len(thresholds) else None


def _milli(value: float | None) -> float | None:
    return None if value is None else value * 1000


getter("nvmlDeviceGetPowerUsage", "I")(lambda device: _milli(device.state.power))
getter("nvmlDeviceGetEnforcedPowerLimit", "I")(lambda device: _milli(device.state.power_limit))
getter("nvmlDeviceGetPowerManagementLimit", "I")(lambda device: _milli(device.state.power_limit))
getter("nvmlDeviceGetTotalEnergyConsumption", "Q")(lambda device: _milli(device.state.energy))


@getter("nvmlDeviceGetClockInfo", "I", takes=[UINT])
def clock(device: Device, domain: int) -> float | None:
    state = device.state
    clocks = state.graphics_clock, state.sm_clock, state.memory_clock, state.video_clock
    return clocks[_domain(domain)]


@getter("nvmlDeviceGetMaxClockInfo", "I", takes=[UINT])
def max_clock(device: Device, domain: int) -> float:
    return device.profile.clocks_max[_domain(domain)]


def _domain(domain: int) -> int:
    if domain > 3:
        raise Refusal(Code.INVALID_ARGUMENT)
    return domain


for _word, _since in (("Throttle", ()), ("Event", (535,))):
    getter(f"nvmlDeviceGetCurrentClocks{_word}Reasons", "Q", since=_since)(lambda device: device.state.clock_events)
    getter(f"nvmlDeviceGetSupportedClocks{_word}Reasons", "Q", since=_since)(lambda _: EVENTS_SUPPORTED)

# Modes and links

getter("nvmlDeviceGetPerformanceState", "I")(lambda device: device.state.performance_state)
getter("nvmlDeviceGetPersistenceMode", "I")(lambda device: device.state.persistence_mode)
getter("nvmlDeviceGetComputeMode", "I")(lambda device: device.state.compute_mode)
getter("nvmlDeviceGetMigMode", "I", "I")(lambda device: _both(device.state.mig_mode, device.state.mig_mode))
getter("nvmlDeviceGetFanSpeed", "I")(lambda device: device.state.fan_speed)
getter("nvmlDeviceGetCurrPcieLinkGeneration", "I")(lambda device: device.state.pcie_generation)
getter("nvmlDeviceGetMaxPcieLinkGeneration", "I")(lambda device: device.profile.pcie_generation)
getter("nvmlDeviceGetCurrPcieLinkWidth", "I")(lambda device: device.state.pcie_width)
getter("nvmlDeviceGetMaxPcieLinkWidth", "I")(lambda device: device.profile.pcie_width)


@getter("nvmlDeviceGetNvLinkState", "I", takes=[UINT])
def nvlink_state(device: Device, link: int) -> float | None:
    """1 for a link that is not down; past the last link, not supported."""
    links = device.state.links
    return int(links[link].state != LINK_DOWN) if link < len(links) else None
