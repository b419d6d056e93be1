"""The examples of each fault, which golden pages, `make soak` and `make truth` use."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from each_case import each_case
from gpumon_sim.library import open_node
from gpumon_sim.profiles import PROFILES
from gpumon_sim.sim_fault import SimFault
from gpumon_sim.sim_faults import FAULTS

from gpumon.model.orders import SimulationError


@each_case("fault", FAULTS.values())
def test_every_example_is_a_valid_scenario(fault: SimFault, tmp_path: Path) -> None:
    """Each fault has an example, and none is refused, because a refused scenario would inject no fault."""
    assert fault.examples
    for example in fault.examples:
        assert example.gpu is None or example.gpu < len(PROFILES[example.profile].bus_ids)
        setting = {fault.key: example.value}
        opened(tmp_path, example.profile, setting if example.gpu is None else {"gpus": {example.gpu: setting}})


def test_an_unknown_fault_is_refused(tmp_path: Path) -> None:
    """The error names the key."""
    with pytest.raises(SimulationError, match="no_such_fault"):
        opened(tmp_path, "h100x8", {"no_such_fault": True})


def opened(folder: Path, profile: str, scenario: dict[str, object]) -> None:
    path = folder / "scenario.yml"
    path.write_text(yaml.safe_dump(scenario), encoding="utf-8")
    open_node(profile, scenario=path, epoch=0.0)
