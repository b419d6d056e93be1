"""What the examples of each fault of the simulation change on /metrics: the lines that go, and those that come."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
import yaml
from gpumon_sim.sim_fault import FULL
from gpumon_sim.sim_faults import FAULTS

from gpumon.model.reading import Page
from gpumon.outputs.prometheus import Renderer
from scripts.simulated_reports import report_of

GOLDEN = Path(__file__).parents[1] / "golden" / "faults"

CASES = [
    (fault.key, profile)
    for fault in FAULTS.values()
    if "page" not in fault.without
    for profile in dict.fromkeys(example.profile for example in fault.examples)
]


@cache
def page(profile: str, scenario: Path | None = None) -> tuple[str, ...]:
    report = report_of(profile, scenario)
    return tuple("".join(Renderer(lambda: report, page).render(report) for page in Page).splitlines())


def changes(before: tuple[str, ...], after: tuple[str, ...]) -> str:
    """Lines that went, then lines that came, each in the order of its page."""
    gone, come = set(before) - set(after), set(after) - set(before)
    lines = [f"-{line}" for line in before if line in gone] + [f"+{line}" for line in after if line in come]
    return "\n".join(lines) + "\n" if lines else ""


def golden_of(fault: str, profile: str) -> Path:
    return GOLDEN / (f"{fault}.diff" if profile == FULL else f"{fault}.{profile}.diff")


@pytest.mark.parametrize(("fault", "profile"), CASES)
def test_each_fault_changes_the_documented_lines(fault: str, profile: str, tmp_path: Path) -> None:
    """Compare line by line; UPDATE_GOLDEN=1 rewrites the file, whose diff is reviewed."""
    scenario, golden = tmp_path / "scenario.yml", golden_of(fault, profile)
    scenario.write_text(yaml.safe_dump(FAULTS[fault].scenario(profile)), encoding="utf-8")
    changed = changes(page(profile), page(profile, scenario))
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(changed, encoding="utf-8")

    assert changed == golden.read_text(encoding="utf-8")


def test_each_golden_page_is_of_a_fault() -> None:
    """No page remains of an example that was removed."""
    assert set(GOLDEN.iterdir()) == {golden_of(*case) for case in CASES}
