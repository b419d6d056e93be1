"""The table of a soak: it knows every fault of the simulation, and all that it may write can be simulated."""

from __future__ import annotations

from pathlib import Path
from random import Random

import yaml
from each_case import each_case

from benchmarks.turmoil import TROUBLES, Trouble, undecided
from gpumon.sim import SimulationError
from gpumon.sim.library import open_node


def test_a_soak_decides_every_fault() -> None:
    """A new row has a trouble in benchmarks/turmoil.py, or a reason there why it can have none."""
    assert undecided() == set()


@each_case("trouble", TROUBLES)
def test_every_trouble_can_be_simulated(trouble: Trouble, tmp_path: Path) -> None:
    """Whatever chance makes of it: a scenario that is refused would be a calm."""
    scenario = tmp_path / "scenario.yml"
    for seed in range(20):
        mapping = {trouble.key: trouble.value(Random(seed))}  # noqa: S311 - the same every time
        assert refusal(scenario, mapping if trouble.node else {"gpus": {3: mapping}}) == "", seed
    assert "no_such_fault" in refusal(scenario, {"no_such_fault": True})


def refusal(scenario: Path, mapping: dict[str, object]) -> str:
    """What the simulation says of it; empty where it takes it."""
    scenario.write_text(yaml.safe_dump(mapping), encoding="utf-8")
    try:
        open_node("h100x8", scenario=scenario, epoch=0.0)
    except SimulationError as error:
        return str(error)
    return ""
