"""The NVLink fabric, the rack location, and the health of the memory, in structs with versions."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pynvml
import pytest
from each_case import each_case
from simulated import answer, simulated_node

NOT_SUPPORTED, MISMATCH = pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
MISSING = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    return tmp_path / "scenario.yml"


class FirstFabricInfo(ctypes.Structure):
    """nvmlGpuFabricInfo_t with a state of one byte, which some versions of the bindings define wrongly."""

    _fields_ = (
        ("cluster", ctypes.c_uint8 * 16),
        ("status", ctypes.c_int),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_uint8),
    )


def fabric(handle: Any) -> Any:
    info = pynvml.c_nvmlGpuFabricInfo_v3_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return info


@pytest.mark.parametrize(
    ("driver", "first", "second", "third"),
    [
        ("535.183.01", 0, MISSING, MISSING),
        ("550.54.15", 0, 0, MISMATCH),
        ("575.57.08", 0, 0, MISMATCH),
        ("580.65.06", 0, 0, 0),
        ("610.43.02", 0, 0, 0),
    ],
)
def test_versions_of_the_struct_come_with_the_driver(
    scenario: Path, driver: str, first: int, second: int, third: int
) -> None:
    """Version 1 has its own function, version 2 exists since 550 and version 3 since 580."""
    with simulated_node(scenario=scenario, text=f'driver_version: "{driver}"') as simulation:
        handle = simulation.handles()[0]
        codes = [
            answer(pynvml.nvmlDeviceGetGpuFabricInfo, handle, ctypes.byref(FirstFabricInfo())),
            answer(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(pynvml.c_nvmlGpuFabricInfo_v2_t())),
            answer(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(pynvml.c_nvmlGpuFabricInfo_v3_t())),
        ]
        assert codes == [first, second, third]


def test_all_struct_versions_agree() -> None:
    """All versions have the same cluster, clique, state and health."""
    with simulated_node("gb200x4") as simulation:
        handles = simulation.handles()
        third = [fabric(handle) for handle in handles]
        second, first = pynvml.c_nvmlGpuFabricInfo_v2_t(), FirstFabricInfo()
        pynvml.nvmlDeviceGetGpuFabricInfoV(handles[0], ctypes.byref(second))
        pynvml.nvmlDeviceGetGpuFabricInfo(handles[0], ctypes.byref(first))
        assert bytes(second.clusterUuid) == bytes(first.cluster) == bytes(third[0].clusterUuid) != bytes(16)
        assert (
            (second.state & 0xFF, second.status, second.cliqueId)
            == (first.state, first.status, first.clique)
            == (3, 0, 2)
        )
        assert second.healthMask == 0b10101010
        assert {bytes(info.clusterUuid) for info in third} == {bytes(first.cluster)}
        assert {info.healthSummary for info in third} == {pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY}


def test_the_health_of_the_fabric_can_be_set(scenario: Path) -> None:
    """One health check, the state and the status can be set separately."""
    text = """
gpus:
  0: {fabric: {health: {route_unhealthy: 1, incorrect_configuration: 5}, summary: 2}}
  1: {fabric: {state: 2}}
  2: {fabric: {status: 999}}
"""
    with simulated_node("gb200x4", scenario, text=text) as simulation:
        unhealthy, starting, failed, healthy = map(fabric, simulation.handles())
        assert unhealthy.healthMask == healthy.healthMask & ~(3 << 4) | 1 << 4 | 5 << 8
        assert (unhealthy.healthSummary, healthy.healthSummary) == (2, 1)
        assert [info.state & 0xFF for info in (starting, healthy)] == [2, 3]
        assert [info.status for info in (failed, healthy)] == [999, 0]


@each_case(
    ("profile", "code", "state", "mask"),
    [
        ("h100x8", 0, 3, 0),
        ("b200x8", 0, 3, 0x80),
        ("h100pciex2", 0, 0, 0),
        ("a100x8", NOT_SUPPORTED, 0, 0),
        ("l40sx4", NOT_SUPPORTED, 0, 0),
    ],
)
def test_fabric_states_of_each_product(profile: str, code: int, state: int, mask: int) -> None:
    """Fabric registration is completed with NVSwitches since Hopper, and otherwise not supported."""
    with simulated_node(profile) as simulation:
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        assert answer(pynvml.nvmlDeviceGetGpuFabricInfoV, simulation.handles()[0], ctypes.byref(info)) == code
        assert (info.state & 0xFF, info.healthMask) == (state, mask)
        assert bytes(info.clusterUuid) == bytes(16)


class PlatformInfo(ctypes.Structure):
    """nvmlPlatformInfo_v1_t and _v2_t. The bindings fail to decode an unknown byte."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("guid", ctypes.c_uint8 * 16),
        ("chassis", ctypes.c_char * 16),
        ("numbers", ctypes.c_uint8 * 5),
    )


def platform(handle: Any, version: int) -> PlatformInfo:
    info = PlatformInfo(ctypes.sizeof(PlatformInfo) | version << 24)
    pynvml.nvmlDeviceGetPlatformInfo(handle, ctypes.byref(info))
    return info


def test_rack_locations_exist_on_rack_systems() -> None:
    """A rack system has chassis, slot, tray, host, peer type and module; a single machine only the last three."""
    with simulated_node("gb200x4") as simulation:
        handles = simulation.handles()
        info = [platform(handle, 2) for handle in handles]
        assert info[0].chassis == platform(handles[0], 1).chassis == b"1820000000001"
        assert [tuple(each.numbers) for each in info] == [(14, 4, 1, 1, module) for module in (2, 1, 4, 3)]
        assert answer(platform, handles[0], 3) == MISMATCH
    with simulated_node("b200x8") as simulation:
        info = [platform(handle, 2) for handle in simulation.handles()]
        assert {each.chassis for each in info} == {b""}
        assert {tuple(each.numbers)[:4] for each in info} == {(255, 255, 1, 1)}
    with simulated_node() as simulation:
        info = [platform(handle, 2) for handle in simulation.handles()]
        assert {(each.chassis, *tuple(each.numbers)[:4]) for each in info} == {(b"", 0, 0, 1, 1)}
    with simulated_node("a100x8") as simulation:
        assert answer(platform, simulation.handles()[0], 2) == NOT_SUPPORTED


def sram(handle: Any) -> Any:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return status


def test_sram_status_requires_root(scenario: Path) -> None:
    """SRAM status has counts and a threshold flag; without root it is denied and other calls work."""
    counts = "uncorrected_sram: 4, corrected_sram: 9, lifetime_uncorrected_sram: 6, threshold_exceeded: 1"
    text = f"gpus: {{1: {{ecc: {{{counts}}}}}}}"
    with simulated_node(scenario=scenario, text=text) as simulation:
        healthy, unhealthy = simulation.handles()[:2]
        status = sram(unhealthy)
        assert (status.aggregateUncSecDed, status.volatileUncSecDed, status.volatileCor) == (6, 4, 9)
        assert [each.bThresholdExceeded for each in (sram(healthy), status)] == [0, 1]
        simulation.edit("root: false")
        assert answer(sram, healthy) == pynvml.NVML_ERROR_NO_PERMISSION
        assert pynvml.nvmlDeviceGetTotalEccErrors(healthy, 1, 0) == 0
    with simulated_node("t4x1") as simulation:
        assert answer(sram, simulation.handles()[0]) == NOT_SUPPORTED


def test_aggregate_ecc_counts_include_volatile_counts(scenario: Path) -> None:
    """Fields and calls agree, and aggregate counts can be set separately from volatile counts."""
    text = "gpus: {0: {ecc: {corrected_dram: 5, uncorrected_dram: 1, lifetime_uncorrected_dram: 7, corrected_sram: 2}}}"
    with simulated_node(scenario=scenario, text=text) as simulation:
        handle = simulation.handles()[0]
        fields = pynvml.nvmlDeviceGetFieldValues(handle, [3, 4, 5, 6, 11, 12, 22, 23])
        assert [f.value.ullVal for f in fields] == [7, 1, 7, 7, 5, 1, 5, 7]
        totals = [pynvml.nvmlDeviceGetTotalEccErrors(handle, error, counter) for counter in (0, 1) for error in (0, 1)]
        assert totals == [7, 1, 7, 7]
        assert pynvml.nvmlDeviceGetMemoryErrorCounter(handle, 0, 0, pynvml.NVML_MEMORY_LOCATION_DRAM) == 5
        assert pynvml.nvmlDeviceGetMemoryErrorCounter(handle, 0, 0, pynvml.NVML_MEMORY_LOCATION_SRAM) == 2


def test_with_ecc_off_counts_are_not_supported(scenario: Path) -> None:
    """With ECC off the mode is 0, counts are not supported, and their batch entries are undefined."""
    with simulated_node(scenario=scenario, text="gpus: {0: {ecc: {mode: 0}}}") as simulation:
        handle = simulation.handles()[0]
        mode, pending, *counts = pynvml.nvmlDeviceGetFieldValues(handle, [1, 2, 3, 6, 12])
        assert (mode.value.uiVal, pending.value.uiVal) == (0, 1)
        assert {f.nvmlReturn for f in counts} == {NOT_SUPPORTED}
        assert answer(pynvml.nvmlDeviceGetTotalEccErrors, handle, 0, 0) == NOT_SUPPORTED
        assert answer(sram, handle) == NOT_SUPPORTED


def test_spare_rows_are_counted_by_bank(scenario: Path) -> None:
    """Each bank has all spare rows until some are used; only older GPUs retire pages."""
    text = "gpus: {0: {remap: {banks_max: 2500, banks_low: 59, banks_none: 1, pending: 1}}}"
    with simulated_node(scenario=scenario, text=text) as simulation:
        worn, healthy = simulation.handles()[:2]
        banks = pynvml.nvmlDeviceGetRowRemapperHistogram(worn)
        assert (banks.max, banks.high, banks.partial, banks.low, banks.none) == (2500, 0, 0, 59, 1)
        assert pynvml.nvmlDeviceGetRowRemapperHistogram(healthy).max == 2560
        assert pynvml.nvmlDeviceGetRemappedRows(worn) == (0, 0, 1, 0)
        assert answer(pynvml.nvmlDeviceGetRetiredPages, worn, 0) == NOT_SUPPORTED
    with simulated_node(
        "t4x1", scenario, text="gpus: {0: {set: {retired_corrected: 3, retired_pending: 1}}}"
    ) as simulation:
        handle = simulation.handles()[0]
        assert len(pynvml.nvmlDeviceGetRetiredPages(handle, 0)) == 3
        assert list(pynvml.nvmlDeviceGetRetiredPages(handle, 1)) == []
        assert pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle) == 1
        assert answer(pynvml.nvmlDeviceGetRowRemapperHistogram, handle) == NOT_SUPPORTED
