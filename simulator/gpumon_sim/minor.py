"""Simulates NVML functions that gpumon uses little or not at all. Most return a constant or NOT_SUPPORTED."""

from __future__ import annotations

import struct

from gpumon_sim.cmemory import put
from gpumon_sim.codes import Code, Refusal
from gpumon_sim.exports import device_function, getter, text_getter
from gpumon_sim.sim_gpu import SimGpu

_GSP = struct.Struct("64s")
_LICENSES = struct.Struct("<iIII128s128sI16x568x")
"""Layout of nvmlGridLicensableFeatures_t with one licensable feature, and padding for two others."""
_VGPU = 1
"""NVML's code of the vGPU feature."""
_NVIDIA, _TESLA = 14, 2
"""NVML's brand numbers."""
_PASSED_THROUGH = 1
_TURING = 6

getter("nvmlDeviceGetBrand", "I")(lambda device: _NVIDIA if device.board.architecture > _TURING else _TESLA)
getter("nvmlDeviceGetBoardId", "I")(lambda device: int(device.identity.bus_id[9:11], 16) << 8)
getter("nvmlDeviceGetMultiGpuBoard", "I")(lambda _: 0)
getter("nvmlDeviceGetDisplayMode", "I")(lambda _: 0)
getter("nvmlDeviceGetDisplayActive", "I")(lambda _: 0)
getter("nvmlDeviceGetAccountingMode", "I")(lambda _: 0)
getter("nvmlDeviceGetDriverModel", "I", "I")(lambda _: None)
getter("nvmlDeviceGetDriverModel_v2", "I", "I", since=(570,))(lambda _: None)
getter("nvmlDeviceGetGpuOperationMode", "I", "I")(lambda _: None)
getter("nvmlDeviceGetNumFans", "I")(lambda device: 0 if device.state.fan_speed is None else 1)
getter("nvmlDeviceGetFanSpeed_v2", "I", takes=["u4"])(lambda device, _fan: device.state.fan_speed)
getter("nvmlDeviceGetEncoderStats", "I", "I", "I")(lambda _: (0, 0, 0))
getter("nvmlDeviceGetGspFirmwareMode", "I", "I")(lambda device: (1, 1) if device.board.architecture > _TURING else None)
getter("nvmlDeviceGetPowerState", "I")(lambda device: device.state.performance_state)
getter("nvmlDeviceGetPowerManagementMode", "I")(lambda _: 1)
getter("nvmlDeviceGetVirtualizationMode", "i")(lambda device: _PASSED_THROUGH if device.profile.guest else 0)
getter("nvmlDeviceGetIrqNum", "I")(lambda device: 100 + device.identity.number)
getter("nvmlDeviceGetPcieSpeed", "I")(lambda device: 2500 << max(0, int(device.state.pcie_generation or 1) - 1))
text_getter("nvmlDeviceGetInforomImageVersion")(lambda _: "G520.0280.02.02")
text_getter("nvmlDeviceGetBoardPartNumber")(lambda device: f"900-{device.board.pci_subsystem >> 16:04X}-0000-000")


@device_function("nvmlDeviceGetGspFirmwareVersion", "struct 64 0")
def gsp_firmware_version(device: SimGpu, out: int | None) -> None:
    """Write the version of the GSP firmware, which equals the driver version. On Turing this is not supported."""
    if device.board.architecture <= _TURING:
        raise Refusal(Code.NOT_SUPPORTED)
    put(out, _GSP, ".".join(f"{part:02}" for part in device.driver).encode())


@device_function("nvmlDeviceGetGridLicensableFeatures_v4", "struct 860 0")
def licensable_features(device: SimGpu, out: int | None) -> None:
    """Write nvmlGridLicensableFeatures_t: the vGPU feature if the scenario sets `vgpu_licensed`, otherwise none."""
    licensed = device.state.vgpu_licensed
    needed = licensed is not None
    put(out, _LICENSES, needed, needed, _VGPU, int(licensed or 0), b"", b"", needed)


@device_function("nvmlDeviceValidateInforom")
def validate_inforom(_device: SimGpu) -> None:
    """Do nothing, so that the call succeeds: the infoROM of a simulated GPU is always valid."""
