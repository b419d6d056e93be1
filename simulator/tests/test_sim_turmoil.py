"""The fault table of a soak: it covers every fault of the simulation with valid scenarios."""

from __future__ import annotations

from pathlib import Path
from random import Random

import yaml
from each_case import each_case
from gpumon_sim.library import open_node

from benchmarks.turmoil import TROUBLES, Trouble, undecided_faults
from gpumon.model.orders import SimulationError


def test_every_fault_is_in_the_soak_or_has_a_reason() -> None:
    """Every fault has a row in benchmarks/turmoil.py, or a reason why it has none."""
    assert undecided_faults() == set()


@each_case("trouble", TROUBLES)
def test_every_soak_fault_is_a_valid_scenario(trouble: Trouble, tmp_path: Path) -> None:
    """Every random scenario is valid, because a refused scenario would inject no fault."""
    scenario = tmp_path / "scenario.yml"
    for seed in range(20):
        mapping = {trouble.key: trouble.value(Random(seed))}  # noqa: S311 - the same every time
        assert refusal(scenario, mapping if trouble.node else {"gpus": {3: mapping}}) == "", seed
    assert "no_such_fault" in refusal(scenario, {"no_such_fault": True})


def refusal(scenario: Path, mapping: dict[str, object]) -> str:
    """Return the error of the simulation, or an empty string."""
    scenario.write_text(yaml.safe_dump(mapping), encoding="utf-8")
    try:
        open_node("h100x8", scenario=scenario, epoch=0.0)
    except SimulationError as error:
        return str(error)
    return ""
