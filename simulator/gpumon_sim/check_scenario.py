"""`python -m gpumon_sim.check_scenario PROFILE [SCENARIO]`: check both. Exit with status 1 if either is invalid."""

from __future__ import annotations

import sys
from pathlib import Path

from gpumon.model.orders import SimulationError
from gpumon_sim.open_library import open_simulated


def main(profile: str, scenario: str = "") -> int:
    try:
        open_simulated(profile, scenario=Path(scenario) if scenario else None, epoch=0.0)
    except SimulationError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
