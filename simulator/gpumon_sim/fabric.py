"""Simulates NVML's functions for a GPU's registration in the NVLink fabric and its position in a rack."""

from __future__ import annotations

import hashlib
import struct

from gpumon_sim.cmemory import check_version, put, take, whole
from gpumon_sim.codes import Code, Refusal
from gpumon_sim.exports import device_function, getter
from gpumon_sim.layouts import UINT
from gpumon_sim.quantities import State
from gpumon_sim.sim_gpu import SimGpu

_FABRIC_V1 = struct.Struct("<16siIB3x")  # cluster, status, clique, state; no version
_FABRIC_V2 = struct.Struct("<I16siIB3xI")  # version, the members of V1, health
_FABRIC_V3 = struct.Struct("<I16siIB3xIB3x")  # the members of V2, summary
_SINCE_V3 = (580,)
_PLATFORM = struct.Struct("<I16s16sBBBBB3x")
"""Layout of nvmlPlatformInfo_t: version, GUID, members that depend on the version, type of the peer, module id. Version
1 has the rack, slot in the chassis, compute slot and node; version 2 the chassis, slot, tray and host.
"""
_SWITCH_CONNECTED = 1
_UNREPORTED = 0xFF


def _state_and_cluster(device: SimGpu) -> tuple[State, bytes]:
    """Return a GPU's state and the uuid (16 bytes) of its fabric cluster. Raise Refusal if the GPU has no fabric."""
    fabric = device.profile.fabric
    if fabric is None or device.state.fabric_state is None:
        raise Refusal(Code.NOT_SUPPORTED)
    digest = hashlib.sha256(f"{device.profile.name}/cluster".encode()).digest()
    return device.state, digest[:16] if fabric.several_nodes else bytes(16)


def _registration(device: SimGpu) -> tuple[bytes, int, int, int]:
    """Return a GPU's registration in the NVLink fabric: the uuid of the cluster, the status, the clique and the state.

    The uuid, status and clique are valid only if the state is 3 (completed).
    """
    state, cluster = _state_and_cluster(device)
    status, clique = whole(state.fabric_status or 0, "i"), whole(state.fabric_clique or 0, "I")
    return cluster, status, clique, whole(state.fabric_state or 0, "B")


@device_function("nvmlDeviceGetGpuFabricInfo", "struct 28 0")
def fabric_info(device: SimGpu, out: int | None) -> None:
    put(out, _FABRIC_V1, *_registration(device))


@device_function("nvmlDeviceGetGpuFabricInfoV", "versioned 4", since=(550,))
def fabric_info_versioned(device: SimGpu, out: int | None) -> None:
    (version,) = take(out, UINT)
    third = version == _FABRIC_V3.size | 3 << 24 and device.driver >= _SINCE_V3
    if not third:
        check_version(out, 2, _FABRIC_V2.size)
    values = version, *_registration(device), whole(device.state.fabric_health or 0, "I")
    if third:
        put(out, _FABRIC_V3, *values, whole(device.state.fabric_summary or 0, "B"))
    else:
        put(out, _FABRIC_V2, *values)


@device_function("nvmlDeviceGetPlatformInfo", "versioned 4", since=(570,))
def platform_info(device: SimGpu, out: int | None) -> None:
    (version,) = take(out, UINT)
    if version != _PLATFORM.size | 1 << 24:
        check_version(out, 2, _PLATFORM.size)
    platform = device.profile.platform
    if platform is None:
        raise Refusal(Code.NOT_SUPPORTED)
    guid = hashlib.sha256(device.identity.uuid.encode()).digest()[:16]
    slot, tray = (_UNREPORTED if place is None else place for place in (platform.slot, platform.tray))
    module = platform.modules[device.identity.number]
    put(out, _PLATFORM, version, guid, platform.chassis.encode(), slot, tray, platform.host, _SWITCH_CONNECTED, module)


getter("nvmlDeviceGetModuleId", "I")(
    lambda device: device.profile.platform and device.profile.platform.modules[device.identity.number]
)


@getter("nvmlDeviceGetNumaNodeId", "I", since=(550,))
def numa_node(device: SimGpu) -> int | None:
    """Return the NUMA node of the GPU's memory; None unless the host uses GPU memory as system memory (Grace)."""
    nodes = device.profile.numa_nodes
    return nodes[device.identity.number] if nodes else None
