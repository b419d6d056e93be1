"""Simulates NVML's functions for MIG: the mode, and the handles, ids and attributes of MIG devices."""

from __future__ import annotations

import hashlib
from uuid import UUID

from gpumon_sim.cmemory import put
from gpumon_sim.codes import Code, Refusal
from gpumon_sim.exports import function, getter
from gpumon_sim.layouts import POINTER
from gpumon_sim.mig import ComputeInstance, devices
from gpumon_sim.sim_gpu import Identity, SimGpu
from gpumon_sim.sim_node import SimNode

MAX_DEVICES = 7
_MIB = 1 << 20


def mig_uuid(identity: Identity, part: ComputeInstance) -> str:
    """Return the uuid of a MIG device, derived from the GPU's uuid, the instance ids and the profile name."""
    text = f"{identity.uuid}/{part.instance.number}/{part.number}/{part.profile}"
    return f"MIG-{UUID(hashlib.sha256(text.encode()).hexdigest()[:32])}"


getter("nvmlDeviceIsMigDeviceHandle", "I", parts=True)(lambda device: device.part is not None)
getter("nvmlDeviceGetMaxMigDeviceCount", "I")(lambda device: MAX_DEVICES if device.state.mig is not None else 0)
getter("nvmlDeviceGetMigMode", "I", "I")(lambda device: (device.state.mig_mode, device.state.mig_pending))


@function("nvmlDeviceGetMigDeviceHandleByIndex", "handle", "u4", "out handle")
def device_by_index(node: SimNode, handle: int | None, index: int, out: int | None) -> None:
    device = node.device("nvmlDeviceGetMigDeviceHandleByIndex", handle)
    if device.state.mig is None:
        raise Refusal(Code.NOT_SUPPORTED)
    if index >= MAX_DEVICES:
        raise Refusal(Code.INVALID_ARGUMENT)
    if index >= len(devices(device.state.mig)):
        raise Refusal(Code.NOT_FOUND)
    put(out, POINTER, node.handle(device.identity.number, index))


@function("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", "handle", "out handle")
def whole_gpu(node: SimNode, handle: int | None, out: int | None) -> None:
    device = node.device("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle, parts=True)
    _part(device)
    put(out, POINTER, node.handle(device.identity.number))


def _part(device: SimGpu) -> ComputeInstance:
    if device.part is None:
        raise Refusal(Code.INVALID_ARGUMENT)
    return device.part


getter("nvmlDeviceGetGpuInstanceId", "I", parts=True)(lambda device: _part(device).instance.number)
getter("nvmlDeviceGetComputeInstanceId", "I", parts=True)(lambda device: _part(device).number)


@getter("nvmlDeviceGetAttributes_v2", "IIIIIIIIQ", parts=True)
def attributes(device: SimGpu) -> tuple[int, ...]:
    """Return a MIG device's multiprocessors, shared engines, slices, and memory in MiB, as nvmlDeviceAttributes_t.

    The engines are copy engines, decoders, encoders, JPEG and OFA. The slices are those of the GPU instance and those
    of the compute instance. The memory is that of the GPU instance.
    """
    part = _part(device)
    size = part.instance.profile
    shared = size.copy_engines, size.decoders, 0, size.jpeg, size.ofa
    return part.multiprocessors, *shared, size.compute, part.slices, size.memory // _MIB
