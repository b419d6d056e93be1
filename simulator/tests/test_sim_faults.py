"""Each fault of a scenario, read through pynvml."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from simulated import SimulatedNvml, answer, simulated_node

from gpumon.clock import boot_clock
from scripts.docs.simulation_page import sections


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    return tmp_path / "scenario.yml"


def power(handle: Any) -> int:
    return answer(pynvml.nvmlDeviceGetPowerUsage, handle)


def by_bus_id(simulation: SimulatedNvml, gpu: int) -> int:
    bus_id = list(simulation.node.pci_functions())[gpu]
    return answer(pynvml.nvmlDeviceGetHandleByPciBusId, bus_id)


def test_set_replaces_readings_and_derived_readings(scenario: Path) -> None:
    """A hot GPU has no thermal margin and slows down; other GPUs are unaffected."""
    text = "gpus: {3: {set: {temperature: 91, utilization: 100, power: 650}}}"
    with simulated_node(scenario=scenario, text=text) as simulation:
        handles = simulation.handles()
        hot = handles[3]
        assert pynvml.nvmlDeviceGetTemperatureV(hot, 0) == 91
        assert pynvml.nvmlDeviceGetMarginTemperature(hot) == 87 - 91
        assert pynvml.nvmlDeviceGetUtilizationRates(hot).gpu == 100
        assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(hot) == 0x20 | 0x40 | 0x8
        assert pynvml.nvmlDeviceGetClockInfo(hot, 1) == 990
        assert pynvml.nvmlDeviceGetPowerUsage(hot) == 650_000
        assert [f.value.uiVal for f in pynvml.nvmlDeviceGetFieldValues(hot, [185, 186])] == [650_000, 650_000]
        assert pynvml.nvmlDeviceGetTemperatureV(handles[2], 0) < 40


def test_set_values_can_change_or_be_absent(scenario: Path) -> None:
    """A rate changes a value from its start within NVML's bounds; null is not supported."""
    text = """
gpus:
  "*": {set: {memory_temperature: null}}
  1: {set: {fan_speed: {value: 30, rate: 2, from: 60}}}
"""
    with simulated_node(scenario=scenario, text=text) as simulation:
        handles = simulation.handles()
        for simulation.now, speed in ((0.0, 30), (60.0, 30), (70.0, 50), (1000.0, 100)):
            assert pynvml.nvmlDeviceGetFanSpeed(handles[1]) == speed
        assert answer(pynvml.nvmlDeviceGetFanSpeed, handles[0]) == pynvml.NVML_ERROR_NOT_SUPPORTED
        assert pynvml.nvmlDeviceGetFieldValues(handles[0], [82])[0].nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_a_lost_gpu_returns_15_and_breaks_uuid_lookups_only(scenario: Path) -> None:
    """Calls on a lost GPU fail, other GPUs work, NVML still counts the GPU, and it recovers."""
    with simulated_node(scenario=scenario) as simulation:
        handles = simulation.handles()
        uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
        simulation.edit("gpus: {3: {lost: true}}")
        assert [power(handle) for handle in handles] == [0, 0, 0, 15, 0, 0, 0, 0]
        assert answer(pynvml.nvmlDeviceGetFieldValues, handles[3], [83]) == 15
        assert [by_bus_id(simulation, n) for n in range(8)] == [0, 0, 0, 15, 0, 0, 0, 0]
        assert [answer(pynvml.nvmlDeviceGetHandleByIndex, n) for n in range(8)] == [0, 0, 0, 15, 0, 0, 0, 0]
        assert {answer(pynvml.nvmlDeviceGetHandleByUUID, uuid) for uuid in uuids} == {15}
        assert pynvml.nvmlDeviceGetCount() == 8
        simulation.edit("")
        assert [power(handle) for handle in handles] == [0] * 8
        assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(uuids[3])) == uuids[3]


def test_a_gpu_can_be_lost_some_seconds_after_the_start(scenario: Path) -> None:
    """The agent has then read it, with its serial number."""
    with simulated_node(scenario=scenario) as simulation:
        handles = simulation.handles()
        simulation.edit("gpus: {3: {lost: 20}}")
        for simulation.now, code in ((19.0, 0), (20.0, 15), (60.0, 15)):
            assert power(handles[3]) == code


@pytest.mark.parametrize(
    ("fault", "on_bus", "bound"),
    [
        ("uncounted: true", 8, "nvidia"),
        ("absent: true", 7, None),
        ("bound: vfio-pci", 8, "vfio-pci"),
        ("bound: none", 8, ""),
    ],
)
def test_an_absent_gpu_shifts_indices(scenario: Path, fault: str, on_bus: int, bound: str | None) -> None:
    """An absent GPU is not found; the GPUs after it keep their UUIDs and get other indices."""
    with simulated_node(scenario=scenario) as simulation:
        handles = simulation.handles()
        uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
        bus_id = pynvml.nvmlDeviceGetPciInfo(handles[3]).busId
        simulation.edit(f"gpus: {{3: {{{fault}}}}}")
        assert pynvml.nvmlDeviceGetCount() == 7
        assert [pynvml.nvmlDeviceGetUUID(handle) for handle in simulation.handles()] == uuids[:3] + uuids[4:]
        assert pynvml.nvmlDeviceGetIndex(handles[4]) == 3
        assert answer(pynvml.nvmlDeviceGetHandleByPciBusId, bus_id) == pynvml.NVML_ERROR_NOT_FOUND
        functions = simulation.node.pci_functions()
        assert len(functions) == on_bus
        assert functions.get(bus_id) == bound


def test_lookup_codes_do_not_affect_open_handles(scenario: Path) -> None:
    """A lookup returns the set code, or a required reset with its advice; an open handle still works."""
    with simulated_node(scenario=scenario) as simulation:
        handles = simulation.handles()
        simulation.edit("gpus: {1: {lookup: 4}, 2: {reset_required: true}, 5: {lookup: OPERATING_SYSTEM}}")
        assert [by_bus_id(simulation, n) for n in range(8)] == [0, 4, 16, 0, 0, 17, 0, 0]
        assert [power(handle) for handle in handles] == [0] * 8
        advice = [pynvml.nvmlDeviceGetFieldValues(handle, [230])[0].value.uiVal for handle in handles]
        assert advice == [0, 0, 1, 0, 0, 0, 0, 0]


def test_functions_fail_by_pattern_for_one_gpu_or_all(scenario: Path) -> None:
    """Patterns have the syntax of file names, and the first match gives the return code."""
    text = """
fail: {nvmlDeviceGetName: UNKNOWN}
gpus: {2: {fail: {"nvmlDeviceGetPower*": 4, "nvmlDeviceGet*Power*": 5}}}
"""
    with simulated_node(scenario=scenario, text=text) as simulation:
        handles = simulation.handles()
        assert {answer(pynvml.nvmlDeviceGetName, handle) for handle in handles} == {999}
        assert [power(handle) for handle in handles[:4]] == [0, 0, 4, 0]
        assert answer(pynvml.nvmlDeviceGetEnforcedPowerLimit, handles[2]) == 5


def test_a_delayed_call_returns_after_one_on_another_gpu(scenario: Path) -> None:
    """A delay applies to the given function and GPU, so that a later call on another GPU returns first."""
    text = "gpus: {2: {delay: {nvmlDeviceGetPowerUsage: 2}}}"
    with simulated_node(scenario=scenario, text=text) as simulation:
        handles = simulation.handles()
        returned = []
        entered = threading.Event()

        def delayed_call() -> None:
            entered.set()
            power(handles[2])
            returned.append(2)

        thread = threading.Thread(target=delayed_call)
        thread.start()
        entered.wait()
        power(handles[1])
        returned.append(1)
        thread.join()
        assert returned == [1, 2]


@pytest.mark.parametrize(
    ("fault", "functions"), [("driver: absent", 12), ("driver: not_loaded", 9), ("driver: mismatch", 18)]
)
def test_the_driver_can_be_missing_or_mismatched(scenario: Path, fault: str, functions: int) -> None:
    """Initialization fails without a driver or with a mismatch; the PCI bus lists the GPUs with their driver."""
    with simulated_node(scenario=scenario, text=fault, init=False) as simulation:
        assert answer(pynvml.nvmlInit) == functions
        bound = "nvidia" if "mismatch" in fault else ""
        assert list(simulation.node.pci_functions().values()) == [bound] * 8
        simulation.edit("")
        assert answer(pynvml.nvmlInit) == 0


def test_nvml_can_be_shut_down_after_the_driver_is_unloaded(scenario: Path) -> None:
    """After the driver is unloaded every call except the shutdown returns 9; a new initialization works later."""
    with simulated_node(scenario=scenario) as simulation:
        handle = simulation.handles()[0]
        simulation.edit("driver: not_loaded")
        assert power(handle) == answer(pynvml.nvmlDeviceGetCount) == answer(pynvml.nvmlInit) == 9
        pynvml.nvmlShutdown()
        simulation.edit("")
        pynvml.nvmlInit()
        assert power(handle) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert power(simulation.handles()[0]) == 0


def test_no_gpu_at_all_fails_initialisation_unless_allowed(scenario: Path) -> None:
    """With the flag NO_GPUS initialization succeeds without GPUs."""
    with simulated_node(scenario=scenario, text='gpus: {"*": {absent: true}}', init=False) as simulation:
        assert answer(pynvml.nvmlInit) == pynvml.NVML_ERROR_GPU_NOT_FOUND
        pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS)
        assert pynvml.nvmlDeviceGetCount() == 0
        assert simulation.node.pci_functions() == {}


def test_ecc_and_row_remapping_are_in_their_fields(scenario: Path) -> None:
    """ECC counts by location, their totals, and row remapping with its flags match their fields."""
    text = """
gpus:
  4:
    ecc: {corrected_dram: 5, corrected_sram: 2, uncorrected_dram: {value: 1, rate: 0.5, from: 10}}
    remap: {correctable: 1, uncorrectable: 2, pending: 1, failed: 1}
"""
    with simulated_node(scenario=scenario, text=text, now=20.0) as simulation:
        fields = [3, 4, 11, 12, 142, 143, 144, 145]
        failing, healthy = (
            [f.value.ullVal for f in pynvml.nvmlDeviceGetFieldValues(simulation.handles()[n], fields)] for n in (4, 5)
        )
        assert failing == [7, 6, 5, 6, 1, 2, 1, 1]
        assert healthy == [0] * 8


def test_links_can_be_down_asleep_or_have_errors(scenario: Path) -> None:
    """A link, or all links, can be down, asleep or have errors; a link that is down has no traffic."""
    text = """
gpus:
  0:
    nvlinks:
      "*": {crc: 1}
      3: {state: down}
      5: {state: sleep, replay: 10, recovery: {rate: 2, from: 100}}
"""
    with simulated_node(scenario=scenario, text=text, now=130.0) as simulation:
        handle = simulation.handles()[0]

        def link(field: int, *links: int) -> list[int]:
            batch = pynvml.nvmlDeviceGetFieldValues(handle, [(field, n) for n in links])
            return [f.value.ullVal for f in batch]

        assert [value & 0xFFFFFFFF for value in link(165, 2, 3, 5)] == [1, 0, 2]
        assert [pynvml.nvmlDeviceGetNvLinkState(handle, n) for n in (2, 3, 5)] == [1, 0, 1]
        assert answer(pynvml.nvmlDeviceGetNvLinkState, handle, 18) == pynvml.NVML_ERROR_NOT_SUPPORTED
        assert link(161, 2, 5) == [0, 10]
        assert link(162, 2, 5) == [0, 60]
        assert link(163, 2, 5) == [1, 1]
        total, one, down = link(138, 0xFFFFFFFF, 2, 3)
        assert total == pytest.approx(17 * one)
        assert down == 0 < one


def test_the_node_can_be_held_free_or_busy(scenario: Path) -> None:
    """idle, busy and jobs replace the default load of all GPUs or of one."""
    with simulated_node(scenario=scenario, text="busy: true\ngpus: {6: {idle: true}}", now=3.0) as simulation:

        def processes() -> list[int]:
            return [len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)) for handle in simulation.handles()]

        assert processes() == [1, 1, 1, 1, 1, 1, 0, 1]
        simulation.edit("idle: true")
        simulation.now = 200.0
        assert processes() == [0] * 8
        simulation.edit("jobs: [{start: 150, end: 250, gpus: [2, 3], load: 0.5}]")
        assert processes() == [0, 0, 1, 1, 0, 0, 0, 0]
        assert 45 <= pynvml.nvmlDeviceGetUtilizationRates(simulation.handles()[2]).gpu <= 55
        simulation.now = 250.0
        assert processes() == [0] * 8


def test_a_hanging_call_returns_when_the_scenario_heals(scenario: Path) -> None:
    """Only the given call on the given GPU hangs; other threads continue, and the edit ends the hang."""
    text = "gpus: {3: {hang: [nvmlDeviceGetTemperatureV]}}"
    with simulated_node(scenario=scenario, text=text) as simulation:
        handles = simulation.handles()
        returned: list[int] = []
        thread = threading.Thread(
            target=lambda: returned.append(pynvml.nvmlDeviceGetTemperatureV(handles[3], 0)), daemon=True
        )
        thread.start()
        thread.join(0.3)
        assert returned == []
        assert power(handles[3]) == 0
        assert pynvml.nvmlDeviceGetTemperatureV(handles[2], 0) > 0
        simulation.edit("")
        thread.join(5)
        assert returned == [pynvml.nvmlDeviceGetTemperatureV(handles[3], 0)]


CHILD = """
import sys, pynvml
from pathlib import Path
from gpumon_sim.library import open_node
node = open_node("h100x8", scenario=Path(sys.argv[2]), epoch=float(sys.argv[1]), trace=Path(sys.argv[3]))
pynvml.nvmlLib = node.library
print("opened", flush=True)
pynvml.nvmlInit()
print("initialised", flush=True)
handle = pynvml.nvmlDeviceGetHandleByIndex(5)
for line in sys.stdin:
    print(pynvml.nvmlDeviceGetPowerUsage(handle) > 0, flush=True)
"""


@pytest.fixture
def start(scenario: Path, tmp_path: Path) -> Any:
    children: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CHILD, str(boot_clock()), str(scenario), str(tmp_path / "trace")]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        children.append(child)
        return child

    yield start
    for child in children:
        with child:
            child.kill()


Start = Callable[[], "subprocess.Popen[str]"]


def read(child: subprocess.Popen[str]) -> str:
    assert child.stdout
    return child.stdout.readline().strip()


def ask(child: subprocess.Popen[str]) -> None:
    assert child.stdin
    child.stdin.write("?\n")
    child.stdin.flush()


def test_a_hanging_initialisation_ends_after_the_edit(scenario: Path, start: Start) -> None:
    """Each process reads the changed scenario itself, also during a hung call."""
    scenario.write_text('hang: ["nvmlInit*"]')
    child = start()
    assert read(child) == "opened"
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(read(child)))
    thread.start()
    thread.join(0.5)
    assert answers == []
    scenario.write_text("{}")
    thread.join(60)
    assert answers == ["initialised"]


def test_a_crashing_call_ends_the_process(scenario: Path, start: Start) -> None:
    """A crash ends the process with SIGSEGV, as a fault in the library does."""
    scenario.write_text("gpus: {5: {crash: [nvmlDeviceGetPowerUsage]}}")
    child = start()
    assert [read(child), read(child)] == ["opened", "initialised"]
    ask(child)
    assert child.wait(60) == -signal.SIGSEGV


def test_a_permanent_hang_ends_only_with_the_process(scenario: Path, start: Start) -> None:
    scenario.write_text("gpus: {5: {hang_forever: [nvmlDeviceGetPowerUsage]}}")
    child = start()
    assert [read(child), read(child)] == ["opened", "initialised"]
    ask(child)
    scenario.write_text("{}")
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.7)
    child.kill()
    assert child.wait(60) == -signal.SIGKILL


def test_calls_are_counted_in_the_trace(start: Start, scenario: Path, tmp_path: Path) -> None:
    """The trace counts calls and their time by function and in total, up to the end of the process."""
    scenario.write_text("gpus: {5: {delay: {nvmlDeviceGetPowerUsage: 0.05}}}")
    child = start()
    for _ in range(3):
        ask(child)
    assert [read(child) for _ in range(5)] == ["opened", "initialised", "True", "True", "True"]
    assert child.stdin
    child.stdin.close()
    assert child.wait(60) == 0
    counts = json.loads((tmp_path / f"trace-{child.pid}.json").read_text())
    assert counts["calls"] == {
        "nvmlInitWithFlags": 1,
        "nvmlDeviceGetHandleByIndex_v2": 1,
        "nvmlDeviceGetPowerUsage": 3,
    }
    assert counts["total"] == 5
    assert counts["seconds"] >= 0.15
    assert 0 < counts["cpu_seconds"] < counts["seconds"] - 0.1, "a call that waits was counted as work"


def test_values_can_be_out_of_bounds(scenario: Path) -> None:
    """Values can be out of bounds within the C type; larger values wrap."""
    text = """
gpus:
  1:
    garbage:
      utilization: 300
      temperature: 65535
      power: -1
      memory_used: 200000000000
      memory_temperature: .nan
      energy: {value: 1000, rate: -10, from: 100}
"""
    with simulated_node(scenario=scenario, text=text, now=100.0) as simulation:
        handle = simulation.handles()[1]
        assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 300
        assert pynvml.nvmlDeviceGetTemperatureV(handle, 0) == 65535
        assert pynvml.nvmlDeviceGetPowerUsage(handle) == 2**32 - 1000
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
        assert memory.used == 200_000_000_000 > memory.total
        assert pynvml.nvmlDeviceGetFieldValues(handle, [82])[0].value.uiVal == 2**31
        before = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        simulation.now = 110.0
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) == before - 100_000


def test_a_field_can_come_with_another_type(scenario: Path) -> None:
    """A field with another type has the same number, which a reader of the expected type misreads."""
    text = "gpus: {1: {set: {power: 250}, field_types: {POWER_AVERAGE: double, POWER_INSTANT: unsigned_short}}}"
    with simulated_node(scenario=scenario, text=text) as simulation:
        mean, instant, energy = pynvml.nvmlDeviceGetFieldValues(simulation.handles()[1], [185, 186, 83])
        assert (mean.valueType, mean.value.dVal) == (pynvml.NVML_VALUE_TYPE_DOUBLE, 250_000.0)
        assert (instant.valueType, instant.value.usVal) == (pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT, 250_000 % 65536)
        assert energy.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG


def test_each_pcie_link_error_has_a_field(scenario: Path) -> None:
    """PCIe link errors are counted by kind, on Hopper and later only."""
    text = "gpus: {0: {pcie_errors: {fatal: 1, correctable: {rate: 2, from: 50}, l0_to_recovery: 4}}}"
    with simulated_node(scenario=scenario, text=text, now=60.0) as simulation:
        fields = pynvml.nvmlDeviceGetFieldValues(simulation.handles()[0], [169, *range(173, 184)])
        assert {f.fieldId: f.value.uiVal for f in fields if f.value.uiVal} == {169: 4, 173: 20, 180: 1}
    with simulated_node("a100x8") as simulation:
        fields = pynvml.nvmlDeviceGetFieldValues(simulation.handles()[0], [169, 173, 183])
        assert {f.nvmlReturn for f in fields} == {pynvml.NVML_ERROR_NOT_SUPPORTED}


def test_a_gpu_that_appears_later_shifts_indices(scenario: Path) -> None:
    """A GPU that appears raises the count; the GPUs after it get other indices and keep their UUIDs."""
    with simulated_node(scenario=scenario, text="gpus: {2: {absent: true}}") as simulation:
        before = [pynvml.nvmlDeviceGetUUID(handle) for handle in simulation.handles()]
        simulation.edit("")
        after = [pynvml.nvmlDeviceGetUUID(handle) for handle in simulation.handles()]
        assert (len(before), len(after)) == (7, 8)
        assert before == after[:2] + after[3:]


def test_an_upgraded_driver_needs_a_new_process(scenario: Path) -> None:
    """The loaded library does not match the new driver, also after another initialization; a new process works."""
    with simulated_node(scenario=scenario) as simulation:
        handle = simulation.handles()[0]
        simulation.edit("driver: not_loaded")
        assert power(handle) == pynvml.NVML_ERROR_DRIVER_NOT_LOADED
        simulation.edit('driver_version: "610.43.02"')
        assert power(handle) == pynvml.NVML_ERROR_UNKNOWN
        pynvml.nvmlShutdown()
        assert answer(pynvml.nvmlInit) == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    with simulated_node(scenario=scenario, text='driver_version: "610.43.02"'):
        assert pynvml.nvmlSystemGetDriverVersion() == "610.43.02"


def test_the_page_matches_the_simulation_tables() -> None:
    """docs/simulation.md has each row of the tables; `make generate` updates it."""
    page = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text(encoding="utf-8")
    assert [name for name, part in sections().items() if part not in page] == []
