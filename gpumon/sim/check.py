"""`python -m gpumon.sim.check PROFILE SCENARIO`: whether this could be simulated; if not, says why and exits with 1."""

from __future__ import annotations

import sys
from pathlib import Path

from gpumon.sim import SimulationError
from gpumon.sim.library import open_node


def main(profile: str, scenario: str) -> int:
    try:
        open_node(profile, scenario=Path(scenario), epoch=0.0)
    except SimulationError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
