"""The simulated library and a C library of the dynamic linker give the same readings to an unmodified pynvml."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest
from simulated import simulated_node
from small_nvml import FAULTS, build

READ = """
import json, sys
import pynvml

if len(sys.argv) > 1:
    from pathlib import Path
    from gpumon_sim.library import open_node
    node = open_node("h100x8", scenario=Path(sys.argv[1]), epoch=0.0)
    pynvml.nvmlLib = node.library

def plain(struct):
    return {name: value if isinstance(value, int) else value.decode() if isinstance(value, bytes) else str(value)
            for name, value in ((field[0], getattr(struct, field[0])) for field in struct._fields_)}

def entry(field):
    member = {0: None, 1: "uiVal", 3: "ullVal", 5: "siVal"}[field.valueType if not field.nvmlReturn else 0]
    return [field.fieldId, field.scopeId, field.nvmlReturn, member and getattr(field.value, member)]

def gpu(handle):
    fields = [82, 83, 91, (165, 2), (165, 3), (165, 18), 185, 194, 9999]
    return {
        "name": pynvml.nvmlDeviceGetName(handle),
        "uuid": pynvml.nvmlDeviceGetUUID(handle),
        "index": pynvml.nvmlDeviceGetIndex(handle),
        "minor": pynvml.nvmlDeviceGetMinorNumber(handle),
        "pci": plain(pynvml.nvmlDeviceGetPciInfo(handle)),
        "memory": plain(pynvml.nvmlDeviceGetMemoryInfo(handle)),
        "memory_v2": plain(pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)),
        "utilization": plain(pynvml.nvmlDeviceGetUtilizationRates(handle)),
        "temperature": pynvml.nvmlDeviceGetTemperatureV(handle, 0),
        "processes": [vars(process) for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)],
        "graphics": pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle),
        "fields": [entry(field) for field in pynvml.nvmlDeviceGetFieldValues(handle, fields)],
    }

try:
    pynvml.nvmlInit()
except pynvml.NVMLError as error:
    print(json.dumps({"error": type(error).__name__}))
    sys.exit()
handles = [pynvml.nvmlDeviceGetHandleByPciBusId(bus_id) for bus_id in ("00000000:1B:00.0", "0000:43:00.0")]
print(json.dumps({
    "driver": pynvml.nvmlSystemGetDriverVersion(),
    "nvml": pynvml.nvmlSystemGetNVMLVersion(),
    "cuda": pynvml.nvmlSystemGetCudaDriverVersion(),
    "count": pynvml.nvmlDeviceGetCount(),
    "words": pynvml.nvmlErrorString(25),
    "gpus": [gpu(handle) for handle in handles],
}))
"""

SAME_VALUES = """
busy: true
gpus:
  "*":
    set:
      utilization: 37
      memory_utilization: 21
      temperature: 57
      memory_temperature: 61
      memory_used: 12884901888
      energy: 123456789.012
      power: 412
    nvlinks: {3: {state: down}}
  2: {absent: true}
  3: {absent: true}
  4: {absent: true}
  5: {absent: true}
  6: {absent: true}
  7: {absent: true}
"""


def read(*arguments: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", READ, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def without_pids(node: Any) -> Any:
    """Remove PIDs and memory of processes, which differ between the two libraries."""
    for gpu in node["gpus"]:
        for process in gpu["processes"]:
            assert process.pop("pid") >= 2_000_000
            assert process.pop("usedGpuMemory") > 1 << 30
    return node


@pytest.fixture(scope="module")
def uuids() -> dict[str, str]:
    with simulated_node() as simulation:
        return {f"UUID_{n}": pynvml.nvmlDeviceGetUUID(handle) for n, handle in enumerate(simulation.handles()[:2])}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, uuids: dict[str, str]) -> dict[str, str]:
    """Return the environment in which the linker finds the library."""
    return {"LD_LIBRARY_PATH": str(build(tmp_path_factory.mktemp("small"), uuids))}


def test_both_libraries_give_the_same_readings(small: dict[str, str], tmp_path: Path) -> None:
    """With the same values, C structs and simulated structs give pynvml the same readings."""
    scenario = tmp_path / "same.yml"
    scenario.write_text(SAME_VALUES)
    ours, theirs = read(str(scenario), environment={}), read(environment=small)
    assert ours.stderr == theirs.stderr == ""
    assert without_pids(json.loads(ours.stdout)) == without_pids(json.loads(theirs.stdout))


def test_both_libraries_can_be_absent(tmp_path: Path) -> None:
    """A missing C library and an absent simulated one give the same error in pynvml."""
    scenario = tmp_path / "absent.yml"
    scenario.write_text("driver: absent")
    nothing = {"LD_LIBRARY_PATH": str(tmp_path)}
    assert read(str(scenario), environment=nothing).stdout == read(environment=nothing).stdout
    assert json.loads(read(environment=nothing).stdout) == {"error": "NVMLError_LibraryNotFound"}


def test_both_libraries_can_crash(small: dict[str, str], tmp_path: Path) -> None:
    """The process ends with the same signal with either library."""
    faults = tmp_path / "faults"
    faults.write_text("crash nvmlDeviceGetUtilizationRates 1\n")
    scenario = tmp_path / "crash.yml"
    scenario.write_text("gpus: {1: {crash: [nvmlDeviceGetUtilizationRates]}}")
    assert read(environment={**small, FAULTS: str(faults)}).returncode == -signal.SIGSEGV
    assert read(str(scenario), environment={}).returncode == -signal.SIGSEGV


def test_the_c_library_hangs_until_its_line_is_gone(small: dict[str, str], tmp_path: Path) -> None:
    """A call hangs in C without the GIL, and continues when its line is removed."""
    faults = tmp_path / "faults"
    faults.write_text("hang nvmlDeviceGetUtilizationRates 1\n")
    command = [sys.executable, "-c", READ]
    with subprocess.Popen(
        command, env={**os.environ, **small, FAULTS: str(faults)}, stdout=subprocess.PIPE, text=True
    ) as child:
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(1.5)
        faults.write_text("")
        output, _ = child.communicate(timeout=60)
    assert json.loads(output)["count"] == 2
