"""The simulated library speaks C: pointers, handles, buffers, struct versions."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest
from simulated import answer, simulated

from gpumon.sim import SimulationError
from gpumon.sim.exports import EXPORTS
from gpumon.sim.library import open_node


def test_functions_are_plain_c_pointers() -> None:
    """A function has no argument types, answers a C int, and may be called with any argument."""
    with simulated() as simulation:
        function = simulation.node.library.nvmlDeviceGetCount_v2
        assert function.argtypes is None
        assert function.restype is ctypes.c_int
        assert function is simulation.node.library.nvmlDeviceGetCount_v2
        assert function(None) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        with pytest.raises(ctypes.ArgumentError):
            function(1 << 80)


def test_every_export_is_a_function_that_pynvml_knows() -> None:
    """No exported name is misspelt: pynvml asks for each of them."""
    source = Path(pynvml.__file__).read_text()
    unknown = [name for name in EXPORTS if f'"{name}"' not in source]
    assert unknown == ["nvmlInit_v2"]  # pynvml calls nvmlInitWithFlags; other programs call this


def test_a_function_that_the_driver_lacks_is_not_found() -> None:
    """What came with a later driver is missing from an older one, and what is not NVML's is missing everywhere."""
    with simulated("t4x1") as simulation:
        [handle] = simulation.handles()
        assert answer(pynvml.nvmlDeviceGetTemperatureV, handle, 0) == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
        assert answer(pynvml.nvmlDeviceGetMarginTemperature, handle) == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
        assert pynvml.nvmlDeviceGetTemperature(handle, 0) > 0
        with pytest.raises(AttributeError, match="nvmlNoSuchThing"):
            simulation.node.library.nvmlNoSuchThing  # noqa: B018


def test_initialisation_is_counted() -> None:
    """As many shutdowns as initialisations, and everything is uninitialised again."""
    with simulated(init=False):
        assert answer(pynvml.nvmlDeviceGetCount) == pynvml.NVML_ERROR_UNINITIALIZED
        pynvml.nvmlInit()
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
        assert pynvml.nvmlDeviceGetCount() == 8
        pynvml.nvmlShutdown()
        assert answer(pynvml.nvmlDeviceGetCount) == pynvml.NVML_ERROR_UNINITIALIZED
        assert answer(pynvml.nvmlShutdown) == pynvml.NVML_ERROR_UNINITIALIZED


def test_handles_die_with_their_initialisation() -> None:
    """A handle from before a new initialisation is invalid, and so is one that was never given out."""
    with simulated() as simulation:
        handle = simulation.handles()[0]
        pynvml.nvmlShutdown()
        assert answer(pynvml.nvmlDeviceGetPowerUsage, handle) == pynvml.NVML_ERROR_UNINITIALIZED
        pynvml.nvmlInit()
        assert answer(pynvml.nvmlDeviceGetPowerUsage, handle) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert answer(pynvml.nvmlDeviceGetPowerUsage, None) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert answer(pynvml.nvmlDeviceGetPowerUsage, ctypes.c_void_p(4096)) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert pynvml.nvmlDeviceGetPowerUsage(simulation.handles()[0]) > 0


def test_a_handle_is_found_by_index_bus_id_and_uuid() -> None:
    """All lookups lead to the same GPU, the bus id with a long or a short domain or none, in any case."""
    with simulated() as simulation:
        for index, handle in enumerate(simulation.handles()):
            uuid, bus_id = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetPciInfo(handle).busId
            assert pynvml.nvmlDeviceGetIndex(handle) == index
            for found in (
                pynvml.nvmlDeviceGetHandleByUUID(uuid),
                pynvml.nvmlDeviceGetHandleByPciBusId(bus_id),
                pynvml.nvmlDeviceGetHandleByPciBusId(bus_id[4:].lower()),
                pynvml.nvmlDeviceGetHandleByPciBusId(bus_id[9:]),
            ):
                assert pynvml.nvmlDeviceGetUUID(found) == uuid
        assert answer(pynvml.nvmlDeviceGetHandleByIndex, 8) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert answer(pynvml.nvmlDeviceGetHandleByPciBusId, "0000:FE:00.0") == pynvml.NVML_ERROR_NOT_FOUND
        assert answer(pynvml.nvmlDeviceGetHandleByPciBusId, "nonsense") == pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert answer(pynvml.nvmlDeviceGetHandleByUUID, "GPU-none") == pynvml.NVML_ERROR_NOT_FOUND


def test_text_needs_room_for_its_end() -> None:
    """A buffer that the text and its NUL do not fit is INSUFFICIENT_SIZE and stays untouched."""
    with simulated() as simulation:
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
def test_structs_carry_their_version(function: str, size: int, version: int) -> None:
    """A version that the driver does not know is code 25, and not a byte beyond the struct is written."""
    with simulated() as simulation:
        handle, call = simulation.handles()[0], getattr(simulation.node.library, function)
        for wrong in (0, version + 1, version + 0x01000000):
            buffer = ctypes.create_string_buffer(struct.pack("<I", wrong), size)
            assert call(handle, buffer) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        buffer = ctypes.create_string_buffer(struct.pack("<I", version) + b"\0" * (size - 4) + b"\x7f" * 8, size + 8)
        assert call(handle, buffer) == 0
        assert buffer.raw[:4] == struct.pack("<I", version)
        assert buffer.raw[4:size].strip(b"\0")
        assert buffer.raw[size:] == b"\x7f" * 8


def test_process_lists_tell_how_much_room_they_need(tmp_path: Path) -> None:
    """Too small an array is INSUFFICIENT_SIZE with the number needed; an empty list is a success."""
    runs = "jobs: [{load: 0.5, memory: 0.3}, {load: 0.3, memory: 0.2, gpus: [0]}]"
    with simulated(scenario=tmp_path / "s.yml", text=runs, now=5.0) as simulation:
        first, second = simulation.handles()[:2]
        count = ctypes.c_uint(1)
        function = simulation.node.library.nvmlDeviceGetComputeRunningProcesses_v3
        assert function(first, ctypes.byref(count), ctypes.create_string_buffer(24)) == 7
        assert count.value == 2
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(first)
        assert len({process.pid for process in processes}) == 2
        assert sum(process.usedGpuMemory for process in processes) == _used(first)
        assert len(pynvml.nvmlDeviceGetComputeRunningProcesses(second)) == 1
        assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(first) == []


def _used(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2).used)


def test_memory_adds_up_in_both_versions() -> None:
    """Used, free and reserved are the total; the first version counts what is reserved as used."""
    with simulated(now=100.0) as simulation:
        for handle in simulation.handles():
            old = pynvml.nvmlDeviceGetMemoryInfo(handle)
            new = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
            assert new.used > 0
            assert new.used + new.free + new.reserved == new.total == old.total == old.used + old.free
            assert old.used == new.used + new.reserved


def test_memory_can_be_filled_to_the_brim_and_no_further(tmp_path: Path) -> None:
    """However much is set to be used, what is free does not fall below nothing."""
    text = "gpus: {0: {set: {memory_used: 1000000000000}}}"
    with simulated(scenario=tmp_path / "s.yml", text=text) as simulation:
        memory = pynvml.nvmlDeviceGetMemoryInfo(simulation.handles()[0], pynvml.nvmlMemory_v2)
        assert (memory.free, memory.used + memory.reserved) == (0, memory.total)


def test_every_code_has_words() -> None:
    """The words for codes come from the library too, without an initialisation."""
    with simulated(init=False):
        assert pynvml.nvmlErrorString(25) == "Argument version mismatch"
        assert pynvml.nvmlErrorString(12345) == "Unknown"


def test_an_unknown_profile_is_named_with_the_known_ones() -> None:
    """The error says what there is to choose from."""
    with pytest.raises(SimulationError, match=r"'b100x8'.*h100x8, a100x8, t4x1"):
        open_node("b100x8", scenario=None, epoch=0.0)


def test_the_profiles_load_neither_driver_nor_ctypes() -> None:
    """The daemon may check a profile's name without the machinery behind it."""
    script = "import sys; import gpumon.sim.profiles; sys.exit(bool({'pynvml', 'ctypes'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
