"""How a row of the table of faults is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.truth.world import World
from gpumon.health.verdict import Action
from gpumon.sim.board import Profile
from gpumon.sim.port_counters import TRAFFIC

NOW = "now"
"""In a scenario: seconds since the node began, when the step is taken."""
PORT = "mlx5_1"
"""The port at which faults of ports happen."""
SILENT: Mapping[str, Any] = {"state": "down", "counters": dict.fromkeys(TRAFFIC, 0)}
"""Scenario of a port that is down, and has counted nothing since the host was booted."""

Where = Literal["gpu", "node", "port"]
"""Which part is to blame: the GPU at which the fault happens, the node or the agent, the port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What happens `at` seconds after the beginning of the fault, and lasts until the next step."""

    at: float = 0.0
    gpu: Mapping[str, Any] = field(default_factory=dict)
    """Scenario of the GPU: see docs/simulation.md."""
    node: Mapping[str, Any] = field(default_factory=dict)
    """Scenario of the node."""
    log: tuple[str, ...] = ()
    """Lines of the kernel log; {bus} is the address of the GPU as the kernel writes it."""
    act: Callable[[World], object] | None = None
    """What no scenario can do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One row."""

    name: str
    check: str
    """The one that has to speak."""
    where: Where = "gpu"
    action: Action = Action.INSPECT
    steps: tuple[Step, ...]
    on: Callable[[Profile], bool] = lambda _: True
    """The profiles on which it can happen."""
    within: float | None = None
    """Seconds until it has to be known; None: what the check waits for, and a minute."""
    before: Mapping[str, Any] = field(default_factory=lambda: {"busy": True})
    """Scenario of the node before and during the fault."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    hides: bool = False
    """The GPU cannot be read: what else is wrong with it is not to be seen."""
    miss: str = ""
    """Why it is not found, or not as it should be, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """One row of the table of what is no fault."""

    name: str
    act: Callable[[World], object] | None = None
    """Done again and again, once in `every` seconds."""
    every: float = 600.0
    before: Mapping[str, Any] = field(default_factory=lambda: {"busy": True})
    """Scenario of the node, until something else is said."""
    on: Callable[[Profile], bool] = lambda _: True
    uptime: float = 86400.0
    """Seconds for which the host has run when the agent starts."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    expected_verdicts: Mapping[str, str] = field(default_factory=dict)
    """Checks that have to speak, below `fail`, and why that is true: one sentence each."""


def once(**gpu: Any) -> tuple[Step, ...]:
    """One thing that happens to the GPU, and stays."""
    return (Step(gpu=gpu),)


def growing(rate: float, value: float = 0.0) -> dict[str, Any]:
    """A counter that begins to grow: so much a second."""
    return {"value": value, "rate": rate, "from": NOW}
