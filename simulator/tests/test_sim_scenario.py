"""Scenarios: what they accept, and when an edit takes effect."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pynvml
import pytest
import yaml
from each_case import each_case
from gpumon_sim.faults.keys import KEYS
from gpumon_sim.faults.row import MINUTE, FaultRow, ScenarioKey, at_time
from gpumon_sim.faults.table import FAULTS
from gpumon_sim.library import open_node
from gpumon_sim.profiles import PROFILES
from simulated import simulated_node

from gpumon.model.orders import SimulationError
from gpumon.model.snapshot import CONTAINER, GUEST, HOST


@each_case(
    ("text", "message"),
    [
        (
            "gpus:\n  3: {lost: true}\n  4: {lsot: true}\n",
            r":3: gpus\.4\.lsot: unknown key 'lsot'; valid keys: .*\blost\b",
        ),
        ("drvier: absent\n", r":1: drvier: unknown key 'drvier'; valid keys: .*\bdriver\b"),
        ("driver: broken\n", "driver: must be one of 'absent', 'not_loaded', 'mismatch'"),
        ("lost: true\n", "unknown key 'lost'"),
        ("gpus: {8: {lost: true}}\n", "no GPU 8; there are 0 to 7"),
        ("gpus: {GPU-x: {lost: true}}\n", "no GPU 'GPU-x'"),
        ("gpus: {0: {lost: x}}\n", "must be true or false"),
        ("gpus: [1]\n", "gpus: must be a mapping"),
        ("gpus: {0: {set: {temperature: warm}}}\n", "must be a number from 0 to 255: degrees Celsius"),
        ("gpus: {0: {set: {power: {vlaue: 1}}}}\n", "unknown key 'vlaue'; valid keys: from, rate, value"),
        ("gpus: {0: {set: {utilization: 101}}}\n", "must be a number from 0 to 100"),
        ("gpus: {0: {nvlinks: {3: {state: up}}}}\n", "'down', 'active', 'sleep', 'no_traffic'"),
        ("gpus: {0: {nvlinks: {99: {state: down}}}}\n", "number of a link"),
        ("gpus: {0: {fail_fields: {POWER: 3}}}\n", "unknown field 'POWER'.*POWER_AVERAGE"),
        ("gpus: {0: {xids: [{at: 3}]}}\n", r"gpus\.0\.xids\.0: needs a key 'xid'"),
        ("gpus: {0: {lookup: 0}}\n", "return code of NVML other than 0"),
        ("gpus: {0: {lookup: SUCCESS}}\n", "return code of NVML other than 0"),
        ("fail: {nvmlDeviceGetNmae: 3}\n", "'nvmlDeviceGetNmae' matches no function"),
        ("hang: nvmlInit\n", "hang: must be a list"),
        ("jobs:\n  - {load: 1}\n  - {gpus: [8]}\n", r":3: jobs\.1\.gpus: no GPU 8; there are 0 to 7"),
        ("seed: 1.5\n", "must be a whole number"),
        ("jobs: [{start: 9, end: 3}]\n", r"jobs\.0: ends before it starts"),
        ("jobs: [{phases: []}]\n", r"jobs\.0\.phases: needs a phase"),
        ("jobs: [{phases: [{seconds: 9}]}]\n", r"jobs\.0\.phases\.0: needs a key 'do'"),
        ("jobs: [{phases: [{do: hang}]}]\n", r"do: must be one of 'work', 'idle', 'spin', 'gone'"),
        ("jobs: [{phases: [{do: spin, load: 1}]}]\n", r"phases\.0\.load: only 'work' has a load"),
        ("jobs: [{phases: [{do: gone, process: Z}]}]\n", r"phases\.0: 'gone' has no process"),
        ("jobs: [{phases: [{do: idle, process: X}]}]\n", r"process: must be one of 'R', 'S', 'D'"),
        ("jobs:\n- phases:\n  - {do: work}\n  - {do: spin}\n", r":3: jobs\.0\.phases\.0: needs a key 'seconds'"),
        ("jobs: [{end: 9, repeat: true}]\n", r"jobs\.0\.phases\.0: needs a key 'seconds'"),
        ("jobs: [{repeat: true, phases: [{do: work, seconds: 9}]}]\n", r"jobs\.0: has .*`repeat` needs an `end`"),
        ("driver_version: 580.65\n", "driver version in quotes"),
        ("place: vm\n", "place: must be one of 'host', 'guest', 'container', 'sandbox'"),
        ("gpus: {*: {lost: true}}\n", "not YAML.*has to be quoted"),
        ("gpus: {\n", "not YAML"),
        ('seed: 1\nplace: "\\UFFFFFFFF"\n', r"not YAML \(line 2: Python int too large"),
        ("- lost\n", "the file: must be a mapping"),
    ],
)
def test_an_invalid_scenario_is_refused_with_line_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    """The error names the file, the line, the key and the valid values."""
    scenario = tmp_path / "s.yml"
    scenario.write_text(text)
    with pytest.raises(SimulationError, match=rf"(?s)^scenario .*s\.yml.*{message}"):
        open_node("h100x8", scenario=scenario, epoch=0.0)


@pytest.mark.parametrize(
    ("profile", "text", "place"),
    [
        ("h100x8", "", HOST),
        ("h100guestx2", "", GUEST),
        ("h100x8", "place: container", CONTAINER),
        ("h100guestx2", "place: host", HOST),
    ],
)
def test_the_place_is_that_of_the_profile_or_scenario(tmp_path: Path, profile: str, text: str, place: str) -> None:
    """The profile or the scenario defines whether the agent is on a host, in a guest or in a container."""
    with simulated_node(profile, tmp_path / "s.yml", text=text) as simulation:
        assert simulation.node.place == place


def test_an_edit_of_the_place_waits_for_the_next_process(tmp_path: Path) -> None:
    """An edit of the place takes effect in the next process, because it is read once."""
    scenario = tmp_path / "s.yml"
    with simulated_node(scenario=scenario, text="place: guest") as simulation:
        simulation.edit("{place: container, gpus: {3: {uncounted: true}}}")
        assert pynvml.nvmlDeviceGetCount() == 7
        assert simulation.node.place == GUEST
    assert open_node("h100x8", scenario=scenario, epoch=0.0).place == CONTAINER


def test_a_guest_sees_nvswitches_but_no_physical_slots(tmp_path: Path) -> None:
    """Clouds give the NVSwitches to a guest that has all GPUs; its PCIe ports are virtual (AI Enterprise HGX guide)."""
    with simulated_node(
        "h100x8", tmp_path / "s.yml", text="{place: guest, gpus: {3: {set: {slot_width: 8}}}}"
    ) as simulation:
        assert (simulation.node.nvswitches(), simulation.node.slot_lanes()) == (4, {})
    with simulated_node("h100guestx2", tmp_path / "s.yml", text="{}") as simulation:
        assert simulation.node.nvswitches() == 0


def test_a_fifo_as_scenario_is_refused(tmp_path: Path) -> None:
    """A FIFO blocks no process that reads the scenario."""
    os.mkfifo(tmp_path / "s.yml")
    with pytest.raises(SimulationError, match="is not a regular file"):
        open_node("t4x1", scenario=tmp_path / "s.yml", epoch=0.0)


def test_a_missing_scenario_is_refused(tmp_path: Path) -> None:
    """A missing file is an error at start."""
    with pytest.raises(SimulationError, match=r"none\.yml: cannot be read .*No such file.*name a readable YAML file"):
        open_node("h100x8", scenario=tmp_path / "none.yml", epoch=0.0)


def test_a_bad_edit_keeps_the_last_good_scenario(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After an invalid edit or removal the last valid scenario stays active, and each error is logged once."""
    scenario = tmp_path / "s.yml"
    with (
        simulated_node(scenario=scenario, text="gpus: {1: {set: {power: 123}}}") as simulation,
        caplog.at_level(logging.WARNING),
    ):
        handle = simulation.handles()[1]

        def power() -> float:
            return int(pynvml.nvmlDeviceGetPowerUsage(handle)) / 1000

        simulation.edit("gpus: {1: {set: {pwoer: 5}}}")
        assert [power(), power()] == [123, 123]
        simulation.node._node._file._next_check = 0.0
        assert power() == 123
        scenario.unlink()
        for _ in range(2):
            simulation.node._node._file._next_check = 0.0
            assert power() == 123
        misspelt, removed = (record.getMessage() for record in caplog.records)
        assert "unknown key 'pwoer'" in misspelt
        assert "cannot be read" in removed
        simulation.edit("gpus: {1: {set: {power: 456}}}")
        assert power() == 456


def test_a_file_that_is_still_written_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed file is read after its last write is old enough, so that no partial scenario is active."""
    monkeypatch.setattr("gpumon_sim.scenario.MIN_AGE", 60.0)
    scenario = tmp_path / "s.yml"
    with simulated_node(scenario=scenario, text="gpus: {1: {lost: true}}") as simulation:
        file = simulation.node._node._file
        scenario.write_text("")
        file._next_check = 0.0
        assert not file.refresh()
        simulation.edit("")
        assert file.refresh()
        assert file.current.gpus[1] == ()


def test_a_gpu_can_be_selected_by_uuid(tmp_path: Path) -> None:
    """A GPU's key is its index or its UUID, and has precedence over the row of all GPUs."""
    with simulated_node() as simulation:
        uuid = pynvml.nvmlDeviceGetUUID(simulation.handles()[6])
    text = f'gpus: {{"*": {{set: {{power: 100}}}}, {uuid}: {{set: {{power: 200}}}}}}'
    with simulated_node(scenario=tmp_path / "s.yml", text=text) as simulation:
        powers = [pynvml.nvmlDeviceGetPowerUsage(handle) for handle in simulation.handles()]
        assert powers == [100_000] * 6 + [200_000, 100_000]


def test_another_seed_gives_another_node(tmp_path: Path) -> None:
    """UUIDs, serial numbers and jobs depend on the seed only."""

    def node(seed: int) -> tuple[str, str, int]:
        with simulated_node(scenario=tmp_path / "s.yml", text=f"seed: {seed}", now=300.0) as simulation:
            handle = simulation.handles()[0]
            energy = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            return pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetSerial(handle), energy

    assert node(1) == node(1)
    assert all(one != other for one, other in zip(node(1), node(2), strict=True))


def test_the_examples_of_the_page_are_valid(tmp_path: Path) -> None:
    """Every YAML block of the documentation is a valid scenario."""
    page = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()
    blocks = [part.split("```")[0] for part in page.split("```yaml\n")[1:]]
    assert len(blocks) >= 5
    for block in blocks:
        scenario = tmp_path / "example.yml"
        scenario.write_text(block)
        open_node("h100x8", scenario=scenario, epoch=0.0)


@each_case("key", KEYS.values(), ids=KEYS)
def test_every_key_has_faults_that_set_it(key: ScenarioKey, tmp_path: Path) -> None:
    """Golden pages and the soak use them on the profile of the row."""
    assert key.faults
    for fault in key.faults:
        assert key.key in fault.scenario
        assert fault.gpu < len(PROFILES[fault.profile].bus_ids)
        opened(tmp_path, fault.profile, scenario_of(fault, 0, fault.gpu))


@each_case("fault", FAULTS, ids=[fault.name or repr(fault.scenario) for fault in FAULTS])
def test_every_step_of_a_fault_is_a_valid_scenario(fault: FaultRow, tmp_path: Path) -> None:
    """No step is refused, because a refused scenario would inject no fault."""
    profile = next(name for name, profile in PROFILES.items() if fault.on(profile))
    for number in range(len(fault.steps)):
        opened(tmp_path, profile, scenario_of(fault, number, gpu=0))


def scenario_of(fault: FaultRow, number: int, gpu: int) -> dict[str, object]:
    step = fault.steps[number]
    text = {**fault.before, **step.node}
    return dict(at_time({**text, "gpus": {gpu: dict(step.gpu), **text.get("gpus", {})}}, MINUTE))


def test_an_unknown_fault_is_refused(tmp_path: Path) -> None:
    """The error names the key."""
    with pytest.raises(SimulationError, match="no_such_fault"):
        opened(tmp_path, "h100x8", {"no_such_fault": True})


def opened(folder: Path, profile: str, scenario: dict[str, object]) -> None:
    path = folder / "scenario.yml"
    path.write_text(yaml.safe_dump(scenario), encoding="utf-8")
    open_node(profile, scenario=path, epoch=0.0)
