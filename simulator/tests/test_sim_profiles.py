"""Every profile with every driver: it opens, its values agree, and a poll reads it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pynvml
from each_case import each_case
from gpumon_sim.codes import Code
from gpumon_sim.exports import EXPORTS
from gpumon_sim.field_values import ROWS
from gpumon_sim.profiles import PROFILES
from gpumon_sim.signatures import Signature
from simulated import simulated_node

from gpumon.collectors.nvml.library import Library
from gpumon.collectors.nvml.poll import NodePoll, start
from gpumon.model import call_progress

DRIVERS = ("535.183.01", "550.54.15", "570.148.08", "580.65.06", "580.82.07", "610.43.02")
NODES = [name for name in PROFILES if name not in {"h100x1", "h100x16"}]
MEMBERS = {0: "dVal", 1: "uiVal", 3: "ullVal", 5: "siVal"}
EXPECTED = {Code.SUCCESS, Code.NOT_SUPPORTED, Code.INVALID_ARGUMENT, Code.ARGUMENT_VERSION_MISMATCH, Code.NOT_FOUND}
EXPECTED |= {Code.INSUFFICIENT_SIZE}

every_node = each_case("profile", NODES)
every_driver = each_case("driver", DRIVERS)


def fields(handle: Any) -> dict[int, Any]:
    """Return the values of all supported fields by number, for links those of the first."""
    batch = pynvml.nvmlDeviceGetFieldValues(handle, sorted({row.number for row in ROWS}))
    return {f.fieldId: getattr(f.value, MEMBERS[f.valueType]) for f in batch if not f.nvmlReturn}


def read(call: Any, *arguments: Any) -> Any:
    """Return the result of the call, or None if it is not supported or not found."""
    try:
        return call(*arguments)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return None


@every_node
@every_driver
def test_calls_and_fields_agree(tmp_path: Path, profile: str, driver: str) -> None:
    """Values that can be read in two ways are the same, for every profile and driver."""
    with simulated_node(
        profile, tmp_path / "s.yml", text=f'driver_version: "{driver}"\nbusy: true', now=100.0
    ) as simulation:
        assert pynvml.nvmlSystemGetDriverVersion() == driver
        for index, handle in enumerate(simulation.handles()):
            by_number = fields(handle)
            assert pynvml.nvmlDeviceGetIndex(handle) == index
            agreeing = [
                (by_number.get(83), read(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)),
                (by_number.get(190), read(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
                (by_number.get(185), read(pynvml.nvmlDeviceGetPowerUsage, handle)),
                (by_number.get(94), read(pynvml.nvmlDeviceGetPcieReplayCounter, handle)),
                (by_number.get(4), read(pynvml.nvmlDeviceGetTotalEccErrors, handle, 1, 0)),
                (by_number.get(142), (read(pynvml.nvmlDeviceGetRemappedRows, handle) or [None])[0]),
                (by_number.get(1), (read(pynvml.nvmlDeviceGetEccMode, handle) or [None])[0]),
            ]
            assert [one for one, other in agreeing if one is not None and one != other] == []
            temperature = pynvml.nvmlDeviceGetTemperature(handle, 0)
            assert read(pynvml.nvmlDeviceGetTemperatureV, handle, 0) in {None, temperature}
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
            assert memory.used + memory.free + memory.reserved == memory.total
            held = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            assert sum(process.usedGpuMemory for process in held) == memory.used


@every_node
@every_driver
def test_no_function_raises(tmp_path: Path, profile: str, driver: str) -> None:
    """Every call on a GPU returns a value or an NVML error, and does not raise otherwise."""
    room = ctypes.create_string_buffer(4096)
    with simulated_node(profile, tmp_path / "s.yml", text=f'driver_version: "{driver}"', now=100.0) as simulation:
        library, handle = simulation.node.library, simulation.handles()[0]
        for name in [name for name in EXPORTS if name.startswith("nvmlDeviceGet") and hasattr(library, name)]:
            takes = Signature(EXPORTS[name].words).c_types[1:]
            if name.startswith("nvmlDeviceGetHandleBy") or name in {
                "nvmlDeviceGetCount_v2",
                "nvmlDeviceGetPcieThroughput",
            }:
                continue
            arguments = [room if take is ctypes.c_void_p else take(1) for take in takes]
            code = getattr(library, name)(handle, *arguments)
            assert code in EXPECTED, name


@every_node
@every_driver
def test_a_poll_reads_every_gpu(tmp_path: Path, profile: str, driver: str) -> None:
    """The agent's poll reads all GPUs without a fault or an error."""
    text = f'driver_version: "{driver}"'
    with simulated_node(profile, tmp_path / "s.yml", text=text, now=100.0, init=False) as simulation:
        library = Library(call_progress.Writer(call_progress.create()))
        assert start(library).driver == driver
        parts: list[Any] = []
        bus = simulation.node.pci_functions
        node = NodePoll(  # however slow the machine is
            library, driver, bus=bus, do_not_open=(), interval=1.0, partial=parts.append, patience=600.0
        )
        last = node.poll()
        readings = [gpu for part in (*parts, last) for gpu in part.gpus]
        assert len(readings) == len(bus())
        assert [gpu.fault for gpu in readings] == [None] * len(readings)
        assert dict(last.errors) == {}
