"""The node source of this distribution: the entry point `gpumon.node_source`, by which the agent finds it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from gpumon.collectors.host.reader import Files
from gpumon.collectors.node_source import NodeWithoutGpu
from gpumon.model.orders import Simulation, is_recording
from gpumon_sim.profiles import PROFILES


def profiles() -> Collection[str]:
    return sorted(PROFILES)


def problem(profile: str, scenario: Path | None) -> str:
    """Return why a profile (or recording) cannot be simulated with a scenario; an empty string if it can.

    A child process makes the check, because the check imports the C functions of the simulation.
    """
    if scenario is None and not is_recording(profile):
        return ""
    command = [sys.executable, "-I", "-m", "gpumon_sim.check_scenario", profile, *([str(scenario)] if scenario else [])]
    checked = subprocess.run(command, check=False, capture_output=True, text=True)
    return checked.stderr.strip() if checked.returncode else ""


def open_node(simulation: Simulation) -> NodeWithoutGpu:
    from gpumon_sim.open_library import open_simulated  # noqa: PLC0415 - the daemon needs only the names of the profiles

    return open_simulated(
        simulation.profile,
        scenario=Path(simulation.scenario) if simulation.scenario else None,
        epoch=simulation.epoch,
        trace=Path(simulation.trace) if simulation.trace else None,
    )


def open_tree(simulation: Simulation) -> Files:
    """Return the files of a node. Those of a recording are none, because it holds only the answers of NVML."""
    from gpumon_sim import infiniband  # noqa: PLC0415 - the same

    if is_recording(simulation.profile):
        return infiniband.FileTree()
    return infiniband.open_tree(
        simulation.profile,
        scenario=Path(simulation.scenario) if simulation.scenario else None,
        epoch=simulation.epoch,
    )
