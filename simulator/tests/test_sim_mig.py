"""MIG: instances of a GPU, read through pynvml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml
import pytest
from each_case import each_case
from gpumon_sim.library import open_node
from gpumon_sim.mig import LayoutError, RequestedInstance, place
from gpumon_sim.sim_products import A100_SXM, B200_SXM, H100_SXM
from simulated import answer, simulated_node

from gpumon.model.orders import SimulationError

NOT_SUPPORTED, INVALID = pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    return tmp_path / "scenario.yml"


def parts(handle: Any) -> list[Any]:
    """Return the handles of the MIG devices of a GPU."""
    devices = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            devices.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except pynvml.NVMLError_NotFound:
            break
    return devices


def names(handle: Any) -> list[str]:
    return [pynvml.nvmlDeviceGetName(part).partition(" MIG ")[2] for part in parts(handle)]


@each_case(
    ("created", "numbers"),
    [
        # From NVIDIA's MIG guide, and (a single 3g) from the H200 capture of nvidia_gpu_exporter.
        ("7g.80gb", [0]),
        ("3g.40gb", [2]),
        ("3g.40gb 3g.40gb", [1, 2]),
        ("3g.40gb 1g.10gb 1g.10gb 1g.10gb", [2, 7, 8, 9]),
        ("4g.40gb 3g.40gb", [1, 2]),
        ("2g.20gb 2g.20gb 2g.20gb 1g.10gb", [3, 4, 5, 13]),
        ("1g.10gb " * 7, [7, 8, 9, 10, 11, 12, 13]),
    ],
)
def test_instances_are_placed_and_numbered_as_by_the_driver(created: str, numbers: list[int]) -> None:
    """The number of an instance gives its position in the memory."""
    assert [instance.number for instance in place(H100_SXM, list(map(RequestedInstance, created.split())))] == numbers


@each_case(
    ("created", "message"),
    [
        ([RequestedInstance("3g.40gb")] * 3, "no room is left for another 3g.40gb"),
        ([RequestedInstance("7g.80gb"), RequestedInstance("1g.10gb")], "no room"),
        ([RequestedInstance("1g.10gb")] * 8, "no room"),
        ([RequestedInstance("3g.90gb")], "no MIG profile '3g.90gb' on NVIDIA H100 80GB HBM3; there are 1g.10gb"),
        ([RequestedInstance("2g.20gb", (1, 2))], "2g.20gb has 2 compute slices, not 3"),
    ],
)
def test_instances_that_do_not_fit_are_refused(created: list[RequestedInstance], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        place(H100_SXM, created)


def test_each_board_has_its_own_sizes() -> None:
    """Names and memory sizes differ between products."""
    assert [profile.name for profile in A100_SXM.mig_profiles] == [profile.name for profile in H100_SXM.mig_profiles]
    assert place(B200_SXM, [RequestedInstance("1g.23gb")])


def test_a_scenario_that_does_not_fit_names_the_gpu(scenario: Path) -> None:
    scenario.write_text("gpus:\n  2: {mig: [7g.80gb, 1g.10gb]}\n")
    with pytest.raises(SimulationError, match=r":2: gpus\.2\.mig: no room is left for another 1g\.10gb"):
        open_node("h100x8", scenario=scenario, epoch=0.0)


def test_a_mig_device_has_its_own_readings_and_its_gpu() -> None:
    """A MIG device has its own name, UUID, numbers, attributes, memory and processes; other calls need the GPU."""
    with simulated_node("h100migx8", now=100.0) as simulation:
        gpu = simulation.handles()[4]
        assert names(gpu) == ["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]
        part = parts(gpu)[0]
        attributes = pynvml.nvmlDeviceGetAttributes(part)
        assert (attributes.multiprocessorCount, attributes.memorySizeMB) == (60, 40448)
        assert (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (3, 3)
        shared = attributes.sharedCopyEngineCount, attributes.sharedDecoderCount, attributes.sharedJpegCount
        assert shared == (3, 3, 3)
        assert pynvml.nvmlDeviceGetIndex(part) == 0
        assert [pynvml.nvmlDeviceIsMigDeviceHandle(handle).value for handle in (part, gpu)] == [1, 0]
        whole = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
        assert pynvml.nvmlDeviceGetUUID(whole) == pynvml.nvmlDeviceGetUUID(gpu)
        uuid = pynvml.nvmlDeviceGetUUID(part)
        assert uuid.startswith("MIG-")
        assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid
        assert answer(pynvml.nvmlDeviceGetPowerUsage, part) == INVALID
        assert answer(pynvml.nvmlDeviceGetGpuInstanceId, gpu) == INVALID
        assert answer(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, 4) == pynvml.NVML_ERROR_NOT_FOUND
        assert answer(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, 7) == INVALID


def test_memory_and_processes_of_mig_devices_add_up_to_the_gpu() -> None:
    """Each process is in one MIG device, and the memory of all MIG devices is in the GPU's memory."""
    with simulated_node("h100migx8", now=100.0) as simulation:
        for gpu in simulation.handles()[3:7]:
            all_of_it = {process.pid: process for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
            used = 0
            for part in parts(gpu):
                memory = pynvml.nvmlDeviceGetMemoryInfo(part, pynvml.nvmlMemory_v2)
                [process] = pynvml.nvmlDeviceGetComputeRunningProcesses(part)
                place = pynvml.nvmlDeviceGetGpuInstanceId(part), pynvml.nvmlDeviceGetComputeInstanceId(part)
                assert (process.gpuInstanceId, process.computeInstanceId) == place
                assert process.usedGpuMemory == memory.used < memory.total == memory.used + memory.free
                assert all_of_it.pop(process.pid).usedGpuMemory == memory.used
                used += memory.used
            assert not all_of_it
            assert pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2).used == used


def test_compute_instances_are_several_mig_devices_of_an_instance(scenario: Path) -> None:
    """Compute instances share memory and engines of their GPU instance, and have names that show it."""
    text = "gpus: {0: {mig: [{profile: 3g.40gb, compute: [1, 2]}]}}"
    with simulated_node(scenario=scenario, text=text) as simulation:
        gpu = simulation.handles()[0]
        assert names(gpu) == ["1c.3g.40gb", "2c.3g.40gb"]
        both = [pynvml.nvmlDeviceGetAttributes(part) for part in parts(gpu)]
        assert [each.multiprocessorCount for each in both] == [20, 40]
        assert {each.memorySizeMB for each in both} == {40448}
        assert [pynvml.nvmlDeviceGetComputeInstanceId(part) for part in parts(gpu)] == [0, 1]


def values(handle: Any, *fields: Any) -> list[Any]:
    batch = pynvml.nvmlDeviceGetFieldValues(handle, list(fields))
    return [f"code {f.nvmlReturn}" if f.nvmlReturn else f.value.ullVal for f in batch]


ENGINES = ("UtilizationRates", "EncoderUtilization", "DecoderUtilization", "JpgUtilization", "OfaUtilization")


@pytest.mark.parametrize(("index", "rows"), [(0, "code 3"), (7, 0)])
def test_a_gpu_with_instances_lacks_some_readings(index: int, rows: Any) -> None:
    """With instances the GPU has no utilization, volatile ECC, active NVLink or remapped rows."""
    with simulated_node("h100migx8", now=100.0) as simulation:
        gpu = simulation.handles()[index]
        assert pynvml.nvmlDeviceGetMigMode(gpu) == [1, 1]
        for engine in ENGINES:
            assert answer(getattr(pynvml, f"nvmlDeviceGet{engine}"), gpu) == NOT_SUPPORTED
        assert answer(pynvml.nvmlDeviceGetTotalEccErrors, gpu, 1, 0) == NOT_SUPPORTED
        assert answer(pynvml.nvmlDeviceGetProcessUtilization, gpu, 0) == NOT_SUPPORTED
        assert values(gpu, 3, 12, 5, 23) == ["code 3", "code 3", 0, 0]
        assert values(gpu, 142, 144) == [rows, rows]
        assert [value & 0xFFFFFFFF for value in values(gpu, (165, 0), (165, 17), (164, 0), 91)] == [0, 0, 0, 18]
        bar1 = pynvml.nvmlDeviceGetBAR1MemoryInfo(gpu)
        assert bar1.bar1Used == 85520809984 - 479 * (1 << 20)
        assert bool(pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)) == bool(parts(gpu)) == (index == 0)


def test_a_gpu_with_mig_off_has_no_mig_devices() -> None:
    with simulated_node() as simulation:
        gpu = simulation.handles()[0]
        assert pynvml.nvmlDeviceGetMigMode(gpu) == [0, 0]
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu) == 0
        assert answer(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, 0) == NOT_SUPPORTED


def test_a_new_layout_is_an_event_and_invalidates_handles(scenario: Path) -> None:
    """A new layout is an event; old handles are invalid and their numbers can be used again."""
    with simulated_node(scenario=scenario, text="gpus: {1: {mig: [3g.40gb, 3g.40gb]}}", now=1.0) as simulation:
        gpu = simulation.handles()[1]
        first, second = parts(gpu)
        waiting = pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(gpu, pynvml.nvmlEventMigConfigChange, waiting)
        simulation.now = 2.0
        simulation.edit("gpus: {1: {mig: [1g.10gb]}}")
        event = pynvml.nvmlEventSetWait_v2(waiting, 0)
        assert event.eventType == pynvml.nvmlEventMigConfigChange
        assert pynvml.nvmlDeviceGetIndex(event.device) == 1
        assert answer(pynvml.nvmlEventSetWait_v2, waiting, 0) == pynvml.NVML_ERROR_TIMEOUT
        assert pynvml.nvmlDeviceGetName(first).endswith("MIG 1g.10gb")
        assert answer(pynvml.nvmlDeviceGetName, second) == INVALID
        simulation.edit("gpus: {1: {mig: null}}")
        assert pynvml.nvmlEventSetWait_v2(waiting, 0).eventType == pynvml.nvmlEventMigConfigChange
        assert pynvml.nvmlDeviceGetMigMode(gpu) == [0, 0]
        assert answer(pynvml.nvmlDeviceGetName, first) == INVALID


def test_the_same_layout_has_the_same_uuids(scenario: Path) -> None:
    text = "gpus: {1: {mig: [3g.40gb, 2g.20gb]}}"
    with simulated_node(scenario=scenario, text=text) as simulation:
        gpu = simulation.handles()[1]
        before = [pynvml.nvmlDeviceGetUUID(part) for part in parts(gpu)]
        simulation.edit("gpus: {1: {mig: []}}")
        assert parts(gpu) == []
        simulation.edit(text)
        assert [pynvml.nvmlDeviceGetUUID(part) for part in parts(gpu)] == before
        assert len(set(before)) == 2
