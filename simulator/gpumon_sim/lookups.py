"""Simulates NVML's functions that count GPUs and look up their handles."""

from __future__ import annotations

import re

from gpumon_sim.cmemory import put
from gpumon_sim.codes import Code, Refusal
from gpumon_sim.exports import function, node_function
from gpumon_sim.layouts import POINTER, UINT
from gpumon_sim.mig import devices
from gpumon_sim.mig_calls import mig_uuid
from gpumon_sim.sim_node import SimNode

_BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.0)?", re.IGNORECASE)


@node_function("nvmlDeviceGetCount_v2", "out I")
def count(node: SimNode, out: int | None) -> None:
    put(out, UINT, len(node.gpus.counted_gpus()))


@function("nvmlDeviceGetHandleByIndex_v2", "u4", "out handle")
def handle_by_index(node: SimNode, index: int, out: int | None) -> None:
    node.need_initialised()
    counted = node.gpus.counted_gpus()
    if index >= len(counted):
        raise Refusal(Code.INVALID_ARGUMENT)
    put(out, POINTER, node.look_up("nvmlDeviceGetHandleByIndex_v2", counted[index]))


@function("nvmlDeviceGetHandleByPciBusId_v2", "string", "out handle")
def handle_by_bus_id(node: SimNode, bus_id: bytes | None, out: int | None) -> None:
    node.need_initialised()
    requested = address((bus_id or b"").decode(errors="replace"))
    matches = [gpu for gpu in node.gpus.counted_gpus() if address(node.profile.bus_ids[gpu]) == requested]
    if not matches:
        raise Refusal(Code.NOT_FOUND)
    put(out, POINTER, node.look_up("nvmlDeviceGetHandleByPciBusId_v2", matches[0]))


@function("nvmlDeviceGetHandleByUUID", "string", "out handle")
def handle_by_uuid(node: SimNode, uuid: bytes | None, out: int | None) -> None:
    node.need_initialised()
    counted = node.gpus.counted_gpus()
    if any(node.gpus.state(gpu).lost for gpu in counted):  # as NVML documents: one lost GPU fails this lookup of all
        raise Refusal(Code.GPU_IS_LOST)
    requested = (uuid or b"").decode(errors="replace")
    for gpu in counted:
        identity = node.scenario().identities[gpu]
        parts = {mig_uuid(identity, part): n for n, part in enumerate(devices(node.gpus.state(gpu).mig))}
        if requested == identity.uuid or requested in parts:
            node.look_up("nvmlDeviceGetHandleByUUID", gpu)
            put(out, POINTER, node.handle(gpu, parts.get(requested)))
            return
    raise Refusal(Code.NOT_FOUND)


def address(bus_id: str) -> tuple[int, int, int]:
    """Return the domain, bus and device numbers in a PCI bus id. Raise Refusal (INVALID_ARGUMENT) if it is invalid."""
    parts = _BUS_ID.fullmatch(bus_id)
    if not parts:
        raise Refusal(Code.INVALID_ARGUMENT)
    domain, bus, device = (int(part or "0", 16) for part in parts.groups())
    return domain, bus, device


@function("nvmlDeviceGetIndex", "handle", "out I")
def index(node: SimNode, handle: int | None, out: int | None) -> None:
    """Write the NVML index of a GPU or, for a MIG device, the index of that device on its GPU."""
    device = node.device("nvmlDeviceGetIndex", handle, parts=True)
    if device.part is not None:
        put(out, UINT, devices(device.state.mig).index(device.part))
        return
    counted = node.gpus.counted_gpus()
    if device.identity.number not in counted:
        raise Refusal(Code.GPU_NOT_FOUND)
    put(out, UINT, counted.index(device.identity.number))
