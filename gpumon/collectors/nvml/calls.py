"""NVML getters that need gpumon's own C structs, with the struct versions that each driver accepts.

pynvml's wrappers of some of these getters are incomplete, and pynvml's structs have changed size between versions.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from gpumon.collectors.nvml.library import INSUFFICIENT_SIZE, Library, NvmlError
from gpumon.model.nvlink import COMPLETED

_UINT, _UINT64, _UINT8 = ctypes.c_uint, ctypes.c_ulonglong, ctypes.c_uint8


def _set_version(struct: ctypes.Structure, number: int) -> ctypes.Structure:
    """Set the struct's version field as NVML defines it (size, and `number` in the highest byte). Return the struct."""
    struct.version = ctypes.sizeof(struct) | number << 24
    return struct


class EccSramErrorStatus(ctypes.Structure):
    """The C struct nvmlEccSramErrorStatus_v1_t. Only its last member is read."""

    _fields_ = (("version", _UINT), ("counts", _UINT64 * 11), ("bThresholdExceeded", _UINT))


def sram_ecc_error_status(library: Library, handle: Any, bus_id: str) -> EccSramErrorStatus:
    status = EccSramErrorStatus()
    _set_version(status, 1)
    library.raw("nvmlDeviceGetSramEccErrorStatus", handle, ctypes.byref(status), bus_id=bus_id)
    return status


_FABRIC = (("cluster_uuid", _UINT8 * 16), ("status", _UINT), ("clique", _UINT), ("state", _UINT8))


class GpuFabricInfo(ctypes.Structure):
    """The C struct nvmlGpuFabricInfo_t: version 1, which has no version field."""

    _fields_ = _FABRIC


class GpuFabricInfo2(ctypes.Structure):
    """The C struct nvmlGpuFabricInfo_v2_t."""

    _fields_ = (("version", _UINT), *_FABRIC, ("health_mask", _UINT))


class GpuFabricInfo3(ctypes.Structure):
    """The C struct nvmlGpuFabricInfo_v3_t."""

    _fields_ = (*GpuFabricInfo2._fields_, ("health_summary", _UINT8))


class FabricInfo(NamedTuple):
    """NVLink fabric membership and health of a GPU. A field that is not reported, or not valid, is None."""

    state: int
    status: int | None
    cluster_uuid: str | None
    clique_id: str | None
    health_mask: int | None
    health_summary: int | None


def fabric_info(library: Library, handle: Any, bus_id: str) -> FabricInfo:
    """Return the GPU's fabric info. Driver 580 accepts version 3 of the struct, drivers from 550 on version 2."""

    def ask(function: str, info: ctypes.Structure) -> Any:
        library.raw(function, handle, ctypes.byref(info), bus_id=bus_id)
        return info

    info = library.newest(
        "nvmlDeviceGetGpuFabricInfo",
        (
            lambda: ask("nvmlDeviceGetGpuFabricInfoV", _set_version(GpuFabricInfo3(), 3)),
            lambda: ask("nvmlDeviceGetGpuFabricInfoV", _set_version(GpuFabricInfo2(), 2)),
            lambda: ask("nvmlDeviceGetGpuFabricInfo", GpuFabricInfo()),
        ),
    )
    done, cluster = info.state == COMPLETED, bytes(info.cluster_uuid)
    joined = done and any(cluster)  # a fabric within one node has no cluster UUID
    return FabricInfo(
        state=info.state,
        status=info.status if done else None,
        cluster_uuid=str(UUID(bytes=cluster)) if joined else None,
        clique_id=str(info.clique) if joined else None,
        health_mask=getattr(info, "health_mask", None),
        health_summary=getattr(info, "health_summary", None) or None,  # 0: not supported
    )


class RawPlatformInfo(ctypes.Structure):
    """The C struct nvmlPlatformInfo_v2_t. Version 1 has the same layout, but its `chassis` is the GUID of the rack."""

    _fields_ = (
        ("version", _UINT),
        ("ib_guid", _UINT8 * 16),
        ("chassis", ctypes.c_char * 16),
        ("slot", _UINT8),
        ("tray", _UINT8),
        ("rest", _UINT8 * 3),
    )


class PlatformInfo(NamedTuple):
    """Chassis serial number, slot and tray of the GPU in a rack; all None if the driver reports no chassis.

    `chassis` is the GUID of the rack if the driver accepts only version 1 of the struct.
    """

    chassis: str | None
    slot: str | None
    tray: str | None


def platform_info(library: Library, handle: Any, bus_id: str) -> PlatformInfo:
    def ask(number: int) -> RawPlatformInfo:
        info = RawPlatformInfo()
        _set_version(info, number)
        library.raw("nvmlDeviceGetPlatformInfo", handle, ctypes.byref(info), bus_id=bus_id)
        return info

    info = library.newest("nvmlDeviceGetPlatformInfo", (lambda: ask(2), lambda: ask(1)))
    chassis = info.chassis.decode(errors="replace").strip()
    return PlatformInfo(chassis, str(info.slot), str(info.tray)) if chassis else PlatformInfo(None, None, None)


class PciInfo(ctypes.Structure):
    """The C struct nvmlPciInfo_t."""

    _fields_ = (("legacy", ctypes.c_char * 16), ("numbers", _UINT * 5), ("busId", ctypes.c_char * 32))


def nvlink_remote_pci_info(library: Library, handle: Any, bus_id: str, link: int) -> PciInfo:
    info = PciInfo()
    library.raw("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, _UINT(link), ctypes.byref(info), bus_id=bus_id)
    return info


class RawProcess(ctypes.Structure):
    """The C structs nvmlProcessInfo_v2_t and, except in the drivers of RawProcess535, nvmlProcessInfo_t."""

    _fields_ = (("pid", _UINT), ("memory", _UINT64), ("gpu_instance_id", _UINT), ("compute_instance_id", _UINT))


class RawProcess535(ctypes.Structure):
    """The C struct nvmlProcessInfo_t of drivers 535.54 to 535.86."""

    _fields_ = (*RawProcess._fields_, ("protected_memory", _UINT64))


_LONG_ROWS = (535,), (535, 98)
"""Driver versions that use RawProcess535: from the first up to, but not including, the second."""


class GpuProcess(NamedTuple):
    """A process on the GPU. `memory` is its GPU memory in bytes; None if the driver does not report it."""

    pid: int
    memory: int | None


_MEMORY_UNKNOWN = 0xFFFFFFFFFFFFFFFF
_USUAL_PROCESSES = 64


def _processes(kind: str) -> Callable[[Library, Any, str], list[GpuProcess]]:
    """Return a getter for the processes of `kind` (Compute or Graphics). The getter usually makes one driver call.

    pynvml's getter also makes a call for the number of processes. Each call holds the driver's lock for milliseconds.
    """

    def ask(library: Library, function: str, handle: Any, bus_id: str, room: int) -> list[GpuProcess]:
        count, space = _UINT(room), (RawProcess535 * room)()  # enough for either struct
        library.raw(function, handle, ctypes.byref(count), space, bus_id=bus_id)
        kind = RawProcess535 if _LONG_ROWS[0] <= library.driver < _LONG_ROWS[1] else RawProcess
        rows = (kind * room).from_buffer(space)
        return [
            GpuProcess(row.pid, None if row.memory == _MEMORY_UNKNOWN else row.memory) for row in rows[: count.value]
        ]

    def processes(library: Library, handle: Any, bus_id: str) -> list[GpuProcess]:
        def read(function: str) -> list[GpuProcess]:
            try:
                return ask(library, function, handle, bus_id, _USUAL_PROCESSES)
            except NvmlError as error:
                if error.code != INSUFFICIENT_SIZE:
                    raise
            return ask(library, function, handle, bus_id, _USUAL_PROCESSES * 16)

        name = f"nvmlDeviceGet{kind}RunningProcesses"
        return library.newest(name, (lambda: read(f"{name}_v3"), lambda: read(f"{name}_v2")))

    return processes


class LicensableFeature(ctypes.Structure):
    """The C struct nvmlGridLicensableFeature_t of drivers from 470 on."""

    _fields_ = (
        ("code", _UINT),
        ("state", _UINT),
        ("texts", ctypes.c_char * 128 * 2),
        ("enabled", _UINT),
        ("expiry", _UINT * 4),
    )


class LicensableFeatures(ctypes.Structure):
    """The C struct nvmlGridLicensableFeatures_t of drivers from 470 on."""

    _fields_ = (("is_supported", ctypes.c_int), ("count", _UINT), ("features", LicensableFeature * 3))


_VGPU_FEATURE = 1
"""NVML's code of the licensable feature vGPU (NVML_GRID_LICENSE_FEATURE_CODE_VGPU)."""


def vgpu_license(library: Library, handle: Any, bus_id: str) -> int | None:
    """Return 1 if a vGPU license is in use, else 0; None if the GPU has licensable features, but vGPU is not one."""
    answer = LicensableFeatures()
    library.raw("nvmlDeviceGetGridLicensableFeatures_v4", handle, ctypes.byref(answer), bus_id=bus_id)
    states = [each.state for each in answer.features[: answer.count] if each.code == _VGPU_FEATURE]
    return any(states) if states else None if answer.is_supported else 0


CALLS: Mapping[str, Callable[..., Any]] = {
    "GridLicensableFeatures": vgpu_license,
    "SramEccErrorStatus": sram_ecc_error_status,
    "FabricInfo": fabric_info,
    "PlatformInfo": platform_info,
    "NvLinkRemotePciInfo": nvlink_remote_pci_info,
    "ComputeRunningProcesses": _processes("Compute"),
    "GraphicsRunningProcesses": _processes("Graphics"),
}
"""gpumon's own getters, by the name in metric tables. Any other name means pynvml's `nvmlDeviceGet<name>`."""
