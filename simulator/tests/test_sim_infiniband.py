"""The ports and services of the simulated node match its load, its scenario and each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from each_case import each_case
from gpumon_sim.infiniband import CGROUPS, UNITS, SimulatedTree, open_tree
from gpumon_sim.nic_files import CLASS
from gpumon_sim.port_counters import SERVICES
from gpumon_sim.profiles import PROFILES

from gpumon.model.bus_id import nvml_bus_id
from gpumon.model.orders import SimulationError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def open_simulated_tree(folder: Path, text: str = "", profile: str = "h100x8", now: float = 0.0) -> SimulatedTree:
    scenario = folder / "scenario.yml"
    scenario.write_text(text)
    clock = Clock()
    clock.now = now
    return open_tree(profile, scenario=scenario, epoch=0.0, clock=clock)


def read(tree: SimulatedTree, name: str, device: str = "mlx5_0") -> str:
    return tree.read(f"{CLASS}/{device}/ports/1/{name}")


@each_case("profile", PROFILES)
def test_each_profile_has_its_ports_and_services(profile: str, tmp_path: Path) -> None:
    """Each profile has its number of devices and its running services."""
    tree, kind = open_simulated_tree(tmp_path, profile=profile), PROFILES[profile]

    assert tree.exists(CLASS) == bool(kind.ports)
    if kind.ports:
        assert len(tree.names(CLASS)) == kind.ports.count
        assert read(tree, "rate").startswith(f"{kind.ports.gigabits:g} Gb/sec (4X ")
    running = {service for service, unit in SERVICES.items() if tree.exists(f"{CGROUPS}/{unit}")}
    assert running == set(kind.services)


@each_case(
    ("name", "counted", "shown"),
    [
        ("counters/symbol_error", 70_000, 65_535),
        ("counters/link_downed", 300, 255),
        ("counters/local_link_integrity_errors", 40, 15),
        ("hw_counters/local_ack_timeout_err", 2**32 + 5, 5),
        ("hw_counters/rx_icrc_encapsulated", 2**32 + 5, 2**32 + 5),
    ],
)
def test_counters_have_the_width_of_the_hardware(name: str, counted: int, shown: int, tmp_path: Path) -> None:
    """A counter of the InfiniBand specification stops at its maximum; a queue counter of mlx5 wraps."""
    text = f"ports: {{mlx5_0: {{counters: {{{name.rpartition('/')[2]}: {counted}}}}}}}"

    assert read(open_simulated_tree(tmp_path, text), name) == str(shown)


def test_traffic_follows_the_load(tmp_path: Path) -> None:
    """Traffic starts idle and then is a part of the speed, the same for every reader at one time."""
    job = "jobs: [{start: 100, end: 200, load: 1.0, gpus: [0]}]"
    words = {
        now: int(read(open_simulated_tree(tmp_path, job, now=now), "counters/port_xmit_data"))
        for now in (50, 150, 200, 900)
    }

    assert words[50] == 0
    assert 0.1 < words[200] * 4 / (100 * 50e9) < 1
    assert words[150] == pytest.approx(words[200] / 2, rel=0.01)
    assert words[900] == words[200]
    assert read(open_simulated_tree(tmp_path, job, now=900), "counters/port_xmit_data", "mlx5_1") == "0"


def test_a_scenario_sets_states_speeds_and_counters(tmp_path: Path) -> None:
    """The row of one device has precedence over the row of all devices."""
    text = """
ports:
  "*": {counters: {symbol_error: 5}}
  mlx5_2: {state: down, rate: 200, counters: {link_downed: {value: 1, rate: 0.5, from: 10}}}
"""
    tree = open_simulated_tree(tmp_path, text, now=14.0)

    assert (read(tree, "state"), read(tree, "counters/symbol_error")) == ("4: ACTIVE", "5")
    assert (read(tree, "state", "mlx5_2"), read(tree, "phys_state", "mlx5_2")) == ("1: DOWN", "2: Polling")
    assert read(tree, "rate", "mlx5_2") == "200 Gb/sec (4X NDR)"
    assert read(tree, "counters/link_downed", "mlx5_2") == "3"


@pytest.mark.parametrize(("state", "unit", "runs"), [("stopped", True, False), ("not_installed", False, False)])
def test_a_service_can_be_stopped_or_missing(tmp_path: Path, state: str, *, unit: bool, runs: bool) -> None:
    """A stopped service has a unit file and no cgroup; a missing one has neither."""
    tree = open_simulated_tree(tmp_path, f"services: {{fabric_manager: {state}}}")

    assert tree.exists(f"{UNITS}/{SERVICES['fabric_manager']}") == unit
    assert tree.exists(f"{CGROUPS}/{SERVICES['fabric_manager']}") == runs


@each_case(
    ("text", "problem"),
    [
        ("ports: {mlx5_9: {state: down}}", "no port 'mlx5_9'; there are mlx5_0 to mlx5_7, and '*' for all"),
        ("ports: {mlx5_1: {state: up}}", "must be one of 'active', 'init', 'down', 'disabled'"),
        ("ports: {mlx5_1: {counters: {crc: 1}}}", "must be one of"),
        ("services: {fabric_manager: dead}", "must be one of 'running', 'stopped', 'not_installed'"),
        ("gpus: {0: {ports: {}}}", "unknown key 'ports'"),
    ],
)
def test_an_invalid_row_is_reported_with_its_line(text: str, problem: str, tmp_path: Path) -> None:
    """An invalid row of ports is reported with its line, as in other parts of a scenario."""
    with pytest.raises(SimulationError, match=r"scenario\.yml:1: .*") as caught:
        open_simulated_tree(tmp_path, text)
    assert problem in str(caught.value)


def test_function_faults_do_not_affect_files(tmp_path: Path) -> None:
    """The child that only reads files does not load the library and accepts rows of functions."""
    scenario = tmp_path / "scenario.yml"
    scenario.write_text('gpus: {5: {hang: ["nvmlDeviceGetTemperature*"]}}\nports: {mlx5_3: {state: down}}\n')
    child = f"""
import subprocess
import sys
from pathlib import Path
from gpumon_sim.infiniband import open_tree
tree = open_tree("h100x8", scenario=Path({str(scenario)!r}), epoch=0.0)
print(tree.read("class/infiniband/mlx5_3/ports/1/state"))
"""
    answer = subprocess.run([sys.executable, "-c", child], capture_output=True, check=True, timeout=60, text=True)
    assert answer.stdout.strip() == "1: DOWN"


def test_a_restarting_service_has_a_new_process_each_time(tmp_path: Path) -> None:
    unit = f"{CGROUPS}/{SERVICES['fabric_manager']}"
    trees = [
        open_simulated_tree(tmp_path, "services: {fabric_manager: restarting}", now=now)
        for now in (0.0, 5.0, 40.0, 70.0)
    ]

    assert all(tree.read(f"{unit}/cgroup.events").startswith("populated 1") for tree in trees)
    processes = [tree.read(f"{unit}/cgroup.procs") for tree in trees]
    assert processes[0] == processes[1]
    assert len(set(processes)) == 3


def test_each_port_device_has_its_own_pci_address(tmp_path: Path) -> None:
    tree, gpus = open_simulated_tree(tmp_path), PROFILES["h100x8"].bus_ids
    places = [
        tree.read(f"{CLASS}/{device}/device/uevent").partition("PCI_SLOT_NAME=")[2] for device in tree.names(CLASS)
    ]

    assert len(set(places)) == 8
    assert not {nvml_bus_id(place) for place in places} & set(gpus)
