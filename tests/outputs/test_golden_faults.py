"""What each fault of the simulation changes on /metrics: the lines that go, and those that come."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from gpumon_sim.sim_faults import FAULTS

from gpumon.model.reading import Page
from gpumon.outputs.prometheus import Renderer
from scripts.simulated_reports import report_of

GOLDEN = Path(__file__).parents[1] / "golden" / "faults"

SCENARIOS: Mapping[str, str] = {
    "absent": "gpus: {7: {absent: true}}",
    "bound": "gpus: {7: {bound: vfio-pci}}",
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
    "nics": "nics: [azure_vf, limited_pf, storage]",
    "nvlinks": "gpus: {3: {nvlinks: {4: {state: down}, 5: {state: sleep}, 7: {crc: 12, replay: 3}}}}",
    "pcie_errors": "gpus: {3: {pcie_errors: {correctable: 5, fatal: 1, l0_to_recovery: 9}}}",
    "power_brake": "gpus: {3: {power_brake: {seconds: 30, every: 60}}}",
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
    "latched_utilization": "shows only on an idle node, whose page differs in most lines",
    "place": "decides how many GPUs are expected, and no reading",
    "peer_access": "is reported by the result of a probe",
    "repair": "is a detail, and reported by verdicts",
    "stuck_processes": "is reported by a verdict, after minutes",
    "xids": "is reported by events, not by polls",
    **dict.fromkeys(("busy", "idle", "jobs", "seed"), "is other work, and no fault"),
}
"""Those that have no golden page, and why."""
ELSEWHERE: Mapping[tuple[str, str], str] = {
    ("c2c_links", "gb200x4"): "gpus: {1: {c2c_links: {2: down}}}",
    ("driver_version", "a100x8"): 'driver_version: "580.105.08"',
    ("ecc", "h100migx8"): "gpus: {3: {ecc: {uncorrected_dram: 2, lifetime_uncorrected_dram: 3}}}",
    ("fabric", "gb200x4"): "gpus: {1: {fabric: {state: 2}}, 2: {fabric: {clique: 7, health: {degraded_bandwidth: 1}}}}",
    ("fail_fields", "t4x1"): "gpus: {0: {fail_fields: {TOTAL_ENERGY_CONSUMPTION: NOT_SUPPORTED}}}",
    ("imex_crashed", "gb200x4"): "imex_crashed: true",
    ("lost", "h100guestx2"): "gpus: {1: {lost: true}}",
    ("lost", "h100migx8"): "gpus: {3: {lost: true}}",
    ("mig", "a100x8"): "gpus: {3: {mig: [4g.40gb, 2g.20gb]}}",
    ("nvlinks", "a100x8"): "gpus: {3: {nvlinks: {4: {state: down}, 7: {crc: 12, recovery: 3}}}}",
    ("nvlinks", "b200x8"): "gpus: {3: {nvlinks: {4: {state: down}, 7: {symbol: 12, recovery_failed: 1}}}}",
    ("nvlinks", "h100migx8"): "gpus: {3: {nvlinks: {4: {state: down}}}}",
    ("nvlinks", "h100pciex2"): 'gpus: {0: {nvlinks: {"*": {state: down}}}}',
    ("services", "gb200x4"): "services: {imex: stopped}",
    ("set", "t4x1"): "gpus: {0: {set: {retired_pending: 1, retired_uncorrected: 2, power: 69, temperature: 94}}}",
}
"""What an h100x8 has not, and what means something else there."""
CASES = {(fault, "h100x8"): text for fault, text in SCENARIOS.items()} | dict(ELSEWHERE)


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
    return GOLDEN / (f"{fault}.diff" if profile == "h100x8" else f"{fault}.{profile}.diff")


@pytest.mark.parametrize(("fault", "profile"), CASES)
def test_each_fault_changes_the_documented_lines(fault: str, profile: str, tmp_path: Path) -> None:
    """Compare line by line; UPDATE_GOLDEN=1 rewrites the file, whose diff is reviewed."""
    scenario, golden = tmp_path / "scenario.yml", golden_of(fault, profile)
    scenario.write_text(CASES[fault, profile], encoding="utf-8")
    changed = changes(page(profile), page(profile, scenario))
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(changed, encoding="utf-8")

    assert changed == golden.read_text(encoding="utf-8")


def test_every_fault_has_a_golden_page_or_a_reason() -> None:
    """No fault is without a golden page or a reason, and no golden page is without a fault."""
    decided = {fault for fault, _ in CASES}
    assert decided | WITHOUT.keys() == FAULTS.keys()
    assert not decided & WITHOUT.keys()
    assert set(GOLDEN.iterdir()) == {golden_of(*case) for case in CASES}
