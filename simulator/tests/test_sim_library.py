"""The simulated library: its functions, handles and structs."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest
from each_case import each_case
from gpumon_sim.exports import EXPORTS
from gpumon_sim.library import DESCRIBED, open_node, signature
from simulated import answer, simulated_node

from gpumon.model.orders import SimulationError


def test_functions_are_plain_c_function_pointers() -> None:
    """A function has no argument types, returns a C int, and accepts any argument."""
    with simulated_node() as simulation:
        function = simulation.node.library.nvmlDeviceGetCount_v2
        assert function.argtypes is None
        assert function.restype is ctypes.c_int
        assert function is simulation.node.library.nvmlDeviceGetCount_v2
        assert function(None) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        with pytest.raises(ctypes.ArgumentError):
            function(1 << 80)


def test_every_export_is_a_function_of_pynvml() -> None:
    source = Path(pynvml.__file__).read_text()
    unknown = [name for name in EXPORTS if f'"{name}"' not in source]
    assert unknown == ["nvmlInit_v2"]  # pynvml calls nvmlInitWithFlags; other programs call this


def test_a_function_that_the_driver_lacks_is_not_found() -> None:
    """Functions of later drivers are absent in an older driver, and other names are always absent."""
    with simulated_node("t4x1") as simulation:
        [handle] = simulation.handles()
        assert answer(pynvml.nvmlDeviceGetTemperatureV, handle, 0) == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
        assert answer(pynvml.nvmlDeviceGetMarginTemperature, handle) == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
        assert pynvml.nvmlDeviceGetTemperature(handle, 0) > 0
        with pytest.raises(AttributeError, match="nvmlNoSuchThing"):
            simulation.node.library.nvmlNoSuchThing  # noqa: B018


def test_initialisation_is_counted() -> None:
    """NVML is uninitialized after as many shutdowns as initializations."""
    with simulated_node(init=False):
        assert answer(pynvml.nvmlDeviceGetCount) == pynvml.NVML_ERROR_UNINITIALIZED
        pynvml.nvmlInit()
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
        assert pynvml.nvmlDeviceGetCount() == 8
        pynvml.nvmlShutdown()
        assert answer(pynvml.nvmlDeviceGetCount) == pynvml.NVML_ERROR_UNINITIALIZED
        assert answer(pynvml.nvmlShutdown) == pynvml.NVML_ERROR_UNINITIALIZED


def test_handles_are_invalid_after_another_initialisation() -> None:
    with simulated_node() as simulation:
        handle = simulation.handles()[0]
        pynvml.nvmlShutdown()
        assert answer(pynvml.nvmlDeviceGetPowerUsage, handle) == pynvml.NVML_ERROR_UNINITIALIZED
        pynvml.nvmlInit()
        assert answer(pynvml.nvmlDeviceGetPowerUsage, handle) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert answer(pynvml.nvmlDeviceGetPowerUsage, None) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert answer(pynvml.nvmlDeviceGetPowerUsage, ctypes.c_void_p(4096)) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert pynvml.nvmlDeviceGetPowerUsage(simulation.handles()[0]) > 0


def test_a_handle_is_found_by_index_bus_id_and_uuid() -> None:
    """Lookups by index, UUID and PCI address in every format return the same GPU."""
    with simulated_node() as simulation:
        for index, handle in enumerate(simulation.handles()):
            uuid, bus_id = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetPciInfo(handle).busId
            assert pynvml.nvmlDeviceGetIndex(handle) == index
            for handle_found in (
                pynvml.nvmlDeviceGetHandleByUUID(uuid),
                pynvml.nvmlDeviceGetHandleByPciBusId(bus_id),
                pynvml.nvmlDeviceGetHandleByPciBusId(bus_id[4:].lower()),
                pynvml.nvmlDeviceGetHandleByPciBusId(bus_id[9:]),
            ):
                assert pynvml.nvmlDeviceGetUUID(handle_found) == uuid
        assert answer(pynvml.nvmlDeviceGetHandleByIndex, 8) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert answer(pynvml.nvmlDeviceGetHandleByPciBusId, "0000:FE:00.0") == pynvml.NVML_ERROR_NOT_FOUND
        assert answer(pynvml.nvmlDeviceGetHandleByPciBusId, "nonsense") == pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert answer(pynvml.nvmlDeviceGetHandleByUUID, "GPU-none") == pynvml.NVML_ERROR_NOT_FOUND


def test_a_text_buffer_needs_space_for_nul() -> None:
    """A buffer too small for text and NUL returns INSUFFICIENT_SIZE and is unchanged."""
    with simulated_node() as simulation:
        handle, name = simulation.handles()[0], pynvml.nvmlDeviceGetName(simulation.handles()[0])
        buffer = ctypes.create_string_buffer(b"\x7f" * 96, 96)
        function = simulation.node.library.nvmlDeviceGetName
        assert function(handle, buffer, ctypes.c_uint(len(name))) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        assert buffer.raw == b"\x7f" * 96
        assert function(handle, buffer, ctypes.c_uint(len(name) + 1)) == 0
        assert buffer.raw == name.encode() + b"\0" + b"\x7f" * (95 - len(name))


@pytest.mark.parametrize(
    ("function", "size", "version"),
    [
        ("nvmlDeviceGetMemoryInfo_v2", 40, 0x02000028),
        ("nvmlDeviceGetTemperatureV", 12, 0x0100000C),
        ("nvmlDeviceGetMarginTemperature", 8, 0x01000008),
    ],
)
def test_structs_contain_their_version(function: str, size: int, version: int) -> None:
    """An unknown struct version returns code 25, and no byte after the struct is written."""
    with simulated_node() as simulation:
        handle, call = simulation.handles()[0], getattr(simulation.node.library, function)
        for wrong in (0, version + 1, version + 0x01000000):
            buffer = ctypes.create_string_buffer(struct.pack("<I", wrong), size)
            assert call(handle, buffer) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        buffer = ctypes.create_string_buffer(struct.pack("<I", version) + b"\0" * (size - 4) + b"\x7f" * 8, size + 8)
        assert call(handle, buffer) == 0
        assert buffer.raw[:4] == struct.pack("<I", version)
        assert buffer.raw[4:size].strip(b"\0")
        assert buffer.raw[size:] == b"\x7f" * 8


def test_process_lists_return_the_size_they_need(tmp_path: Path) -> None:
    """An array that is too small returns INSUFFICIENT_SIZE with the size; an empty list succeeds."""
    runs = "jobs: [{load: 0.5, memory: 0.3}, {load: 0.3, memory: 0.2, gpus: [0]}]"
    with simulated_node(scenario=tmp_path / "s.yml", text=runs, now=5.0) as simulation:
        first, second = simulation.handles()[:2]
        count = ctypes.c_uint(1)
        function = simulation.node.library.nvmlDeviceGetComputeRunningProcesses_v3
        assert function(first, ctypes.byref(count), ctypes.create_string_buffer(24)) == 7
        assert count.value == 2
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(first)
        assert len({process.pid for process in processes}) == 2
        assert sum(process.usedGpuMemory for process in processes) == _used_memory(first)
        assert len(pynvml.nvmlDeviceGetComputeRunningProcesses(second)) == 1
        assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(first) == []


def _used_memory(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2).used)


def test_memory_adds_up_in_both_versions() -> None:
    """Used, free and reserved memory add up to the total; version 1 counts reserved memory as used."""
    with simulated_node(now=100.0) as simulation:
        for handle in simulation.handles():
            old = pynvml.nvmlDeviceGetMemoryInfo(handle)
            new = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
            assert new.used > 0
            assert new.used + new.free + new.reserved == new.total == old.total == old.used + old.free
            assert old.used == new.used + new.reserved


def test_free_memory_is_never_negative(tmp_path: Path) -> None:
    """Free memory is never negative, whatever value is set for used memory."""
    text = "gpus: {0: {set: {memory_used: 1000000000000}}}"
    with simulated_node(scenario=tmp_path / "s.yml", text=text) as simulation:
        memory = pynvml.nvmlDeviceGetMemoryInfo(simulation.handles()[0], pynvml.nvmlMemory_v2)
        assert (memory.free, memory.used + memory.reserved) == (0, memory.total)


def test_every_return_code_has_a_text() -> None:
    with simulated_node(init=False):
        assert pynvml.nvmlErrorString(25) == "Argument version mismatch"
        assert pynvml.nvmlErrorString(12345) == "Unknown"


def test_an_unknown_profile_is_an_error_that_lists_the_profiles() -> None:
    with pytest.raises(SimulationError, match=r"'b100x8'.*h100x8, a100x8, t4x1"):
        open_node("b100x8", scenario=None, epoch=0.0)


def test_a_real_host_loads_no_module_of_the_simulation() -> None:
    """The daemon and its children import nothing of gpumon_sim unless they simulate."""
    modules = "gpumon.cli.serve, gpumon.daemon, gpumon.collectors.sampler.__main__, gpumon.collectors.host.__main__"
    script = f"import sys, {modules}; print(*(name for name in sys.modules if name.startswith('gpumon_sim')))"
    assert subprocess.run([sys.executable, "-c", script], check=True, capture_output=True).stdout.split() == []


def test_the_profiles_load_neither_driver_nor_ctypes() -> None:
    """The profiles can be imported without the driver and ctypes, so that the daemon can check a name."""
    script = "import sys; import gpumon_sim.profiles; sys.exit(bool({'pynvml', 'ctypes'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@each_case("function", sorted(DESCRIBED))
def test_the_arguments_of_every_function_are_described(function: str) -> None:
    """Every simulated or recorded function has words that describe all arguments of the C function."""
    described = signature(function)

    assert described is not None
    assert len(described.c_types) >= len(described.words)
