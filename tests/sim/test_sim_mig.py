"""MIG: a GPU cut into instances, seen through pynvml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml
import pytest
from each_case import each_case
from simulated import answer, simulated

from gpumon.sim import SimulationError
from gpumon.sim.library import open_node
from gpumon.sim.mig import LayoutError, RequestedInstance, place
from gpumon.sim.sim_products import A100_SXM, B200_SXM, H100_SXM

NOT_SUPPORTED, INVALID = pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    return tmp_path / "scenario.yml"


def parts(handle: Any) -> list[Any]:
    """Handles of the MIG devices of a GPU."""
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except pynvml.NVMLError_NotFound:
            break
    return found


def names(handle: Any) -> list[str]:
    return [pynvml.nvmlDeviceGetName(part).partition(" MIG ")[2] for part in parts(handle)]


@each_case(
    ("created", "numbers"),
    [
        # As in the listings of NVIDIA's MIG guide, and (a single 3g) in the H200 capture of nvidia_gpu_exporter.
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
    """The number of an instance says where in the memory it lies."""
    assert [instance.number for instance in place(H100_SXM, list(map(RequestedInstance, created.split())))] == numbers


@each_case(
    ("created", "says"),
    [
        ([RequestedInstance("3g.40gb")] * 3, "no room is left for another 3g.40gb"),
        ([RequestedInstance("7g.80gb"), RequestedInstance("1g.10gb")], "no room"),
        ([RequestedInstance("1g.10gb")] * 8, "no room"),
        ([RequestedInstance("3g.90gb")], "no MIG profile '3g.90gb' on NVIDIA H100 80GB HBM3; there are 1g.10gb"),
        ([RequestedInstance("2g.20gb", (1, 2))], "2g.20gb has 2 compute slices, not 3"),
    ],
)
def test_what_does_not_fit_is_refused(created: list[RequestedInstance], says: str) -> None:
    """With the name of what is too much."""
    with pytest.raises(LayoutError, match=says):
        place(H100_SXM, created)


def test_each_board_has_its_own_sizes() -> None:
    """Names and memory differ from board to board."""
    assert [profile.name for profile in A100_SXM.mig_profiles] == [profile.name for profile in H100_SXM.mig_profiles]
    assert place(B200_SXM, [RequestedInstance("1g.23gb")])


def test_a_scenario_that_does_not_fit_names_the_gpu(scenario: Path) -> None:
    """The error says which GPU cannot be cut so."""
    scenario.write_text("gpus:\n  2: {mig: [7g.80gb, 1g.10gb]}\n")
    with pytest.raises(SimulationError, match=r":2: gpus\.2\.mig: no room is left for another 1g\.10gb"):
        open_node("h100x8", scenario=scenario, epoch=0.0)


def test_a_part_answers_for_itself_and_its_gpu_is_found() -> None:
    """Name, uuid, numbers, attributes, memory and processes are the part's; anything else is for the GPU's handle."""
    with simulated("h100migx8", now=100.0) as simulation:
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


def test_memory_and_processes_of_the_parts_are_those_of_the_gpu() -> None:
    """Each process is in one part, and says in which; their memory is the part's, and all of it the GPU's."""
    with simulated("h100migx8", now=100.0) as simulation:
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


def test_compute_slices_make_several_parts_of_an_instance(scenario: Path) -> None:
    """They share the instance's memory and engines, and say so in their names."""
    text = "gpus: {0: {mig: [{profile: 3g.40gb, compute: [1, 2]}]}}"
    with simulated(scenario=scenario, text=text) as simulation:
        gpu = simulation.handles()[0]
        assert names(gpu) == ["1c.3g.40gb", "2c.3g.40gb"]
        both = [pynvml.nvmlDeviceGetAttributes(part) for part in parts(gpu)]
        assert [one.multiprocessorCount for one in both] == [20, 40]
        assert {one.memorySizeMB for one in both} == {40448}
        assert [pynvml.nvmlDeviceGetComputeInstanceId(part) for part in parts(gpu)] == [0, 1]


def values(handle: Any, *fields: Any) -> list[Any]:
    batch = pynvml.nvmlDeviceGetFieldValues(handle, list(fields))
    return [f"code {f.nvmlReturn}" if f.nvmlReturn else f.value.ullVal for f in batch]


ENGINES = ("UtilizationRates", "EncoderUtilization", "DecoderUtilization", "JpgUtilization", "OfaUtilization")


@pytest.mark.parametrize(("index", "rows"), [(0, "code 3"), (7, 0)])
def test_a_gpu_that_is_cut_up_lacks_what_it_had(index: int, rows: Any) -> None:
    """No utilization, volatile ECC or NVLink that is up; remapped rows are told while no instance is there."""
    with simulated("h100migx8", now=100.0) as simulation:
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


def test_a_gpu_that_is_whole_has_no_parts() -> None:
    """MIG can be, but is off: a mode, and no device to be had."""
    with simulated() as simulation:
        gpu = simulation.handles()[0]
        assert pynvml.nvmlDeviceGetMigMode(gpu) == [0, 0]
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu) == 0
        assert answer(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, 0) == NOT_SUPPORTED


def test_a_new_layout_is_an_event_and_old_handles_mean_something_else(scenario: Path) -> None:
    """Handles die with the layout, and their numbers are given out again: to a part of another size."""
    with simulated(scenario=scenario, text="gpus: {1: {mig: [3g.40gb, 3g.40gb]}}", now=1.0) as simulation:
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
    """Cut anew in the same way, a part is called what it was called before."""
    text = "gpus: {1: {mig: [3g.40gb, 2g.20gb]}}"
    with simulated(scenario=scenario, text=text) as simulation:
        gpu = simulation.handles()[1]
        before = [pynvml.nvmlDeviceGetUUID(part) for part in parts(gpu)]
        simulation.edit("gpus: {1: {mig: []}}")
        assert parts(gpu) == []
        simulation.edit(text)
        assert [pynvml.nvmlDeviceGetUUID(part) for part in parts(gpu)] == before
        assert len(set(before)) == 2
