"""What each fault of the simulation changes on /metrics: the lines that go, and those that come."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from gpumon.outputs.prometheus import Renderer
from gpumon.report import Report
from gpumon.sim.faults import FAULTS
from scripts.profiles import report_of

GOLDEN = Path(__file__).parents[1] / "golden" / "faults"

SCENARIOS: Mapping[str, str] = {
    "absent": "gpus: {7: {absent: true}}",
    "bound": "gpus: {7: {bound: vfio-pci}}",
    "c2c_links": "gpus: {1: {c2c_links: {2: down}}}",
    "delay": "delay: {nvmlDeviceGetPowerUsage: 0.001}",
    "driver_version": 'driver_version: "535.183.01"',
    "ecc": "gpus: {3: {ecc: {uncorrected_dram: 2, corrected_sram: 7, lifetime_uncorrected_dram: 3, pending: 0}}}",
    "fabric": "gpus: {1: {fabric: {state: 2}}, 2: {fabric: {status: 999}}, 3: {fabric: {state: 1}}}",
    "fail": "gpus: {3: {fail: {nvmlDeviceGetUtilizationRates: 999, nvmlDeviceGetClockInfo: NOT_SUPPORTED}}}",
    "fail_fields": "gpus: {3: {fail_fields: {TOTAL_ENERGY_CONSUMPTION: 999, MEMORY_TEMP: NOT_SUPPORTED}}}",
    "field_types": "gpus: {3: {field_types: {POWER_AVERAGE: double}}}",
    "garbage": "gpus: {3: {garbage: {utilization: 300, temperature: 65535}}}",
    "gpm": 'gpus: {2: {gpm: {"*": 0}}, 3: {gpm: {sm_util: 300, any_tensor_util: null}}}',
    "lookup": "gpus: {3: {lookup: NO_PERMISSION}}",
    "lost": "gpus: {3: {lost: true}}",
    "mig": "gpus: {3: {mig: [3g.40gb, 3g.40gb]}}",
    "nvlinks": "gpus: {3: {nvlinks: {4: {state: down}, 5: {state: sleep}, 7: {crc: 12, replay: 3}}}}",
    "pcie_errors": "gpus: {3: {pcie_errors: {correctable: 5, fatal: 1, l0_to_recovery: 9}}}",
    "ports": "ports: {mlx5_3: {state: down}}",
    "remap": "gpus: {3: {remap: {uncorrectable: 1, pending: 1, failed: 1, banks_none: 1, banks_max: 2559}}}",
    "reset_required": "gpus: {3: {reset_required: true}}",
    "root": "root: false",
    "services": "services: {fabric_manager: stopped}",
    "set": "gpus: {3: {set: {temperature: 91, pcie_width: 8, recovery_action: 1, fan_speed: 60}}}",
    "uncounted": "gpus: {7: {uncounted: true}}",
}
WITHOUT = {
    "crash": "ends the process that reads",
    "hang": "holds it",
    "hang_forever": "holds it",
    "driver": "lets no poll begin",
    "xids": "is told by events, not by polls",
    **dict.fromkeys(("busy", "idle", "jobs", "seed"), "is other work, and no fault"),
}
"""Those that have no golden page, and why."""
ELSEWHERE = {"c2c_links": "gb200x4"}
"""Faults of what an h100x8 has not."""


@cache
def page(profile: str, scenario: Path | None = None) -> tuple[str, ...]:
    return tuple(Renderer(lambda: Report(started=0.0)).render(report_of(profile, scenario)).splitlines())


def changes(before: tuple[str, ...], after: tuple[str, ...]) -> str:
    """Lines that went, then lines that came, each in the order of its page."""
    gone, come = set(before) - set(after), set(after) - set(before)
    lines = [f"-{line}" for line in before if line in gone] + [f"+{line}" for line in after if line in come]
    return "\n".join(lines) + "\n" if lines else ""


@pytest.mark.parametrize("fault", SCENARIOS)
def test_each_fault_changes_what_it_is_said_to(fault: str, tmp_path: Path) -> None:
    """Line by line; UPDATE_GOLDEN=1 writes it anew, and then the diff is the review."""
    profile, scenario, golden = ELSEWHERE.get(fault, "h100x8"), tmp_path / "scenario.yml", GOLDEN / f"{fault}.diff"
    scenario.write_text(SCENARIOS[fault], encoding="utf-8")
    changed = changes(page(profile), page(profile, scenario))
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(changed, encoding="utf-8")

    assert changed == golden.read_text(encoding="utf-8")


def test_every_fault_is_decided() -> None:
    """A new fault has a golden page, or a reason why it can have none; and none is left behind."""
    assert SCENARIOS.keys() | WITHOUT.keys() == FAULTS.keys()
    assert not SCENARIOS.keys() & WITHOUT.keys()
    assert {path.stem for path in GOLDEN.iterdir()} == set(SCENARIOS)
