"""Types of the rows in the tables of faults and disturbances."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gpumon_sim.board import Profile
from gpumon_sim.port_counters import TRAFFIC

from benchmarks.truth.world import World
from gpumon.health.verdict import Action

NOW = "now"
"""Placeholder in a scenario for the time of the step, in seconds since the start of the node."""
PORT = "mlx5_1"
"""Port with the faults of ports."""
SWITCH_LINK_DOWN = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
"""Logged whenever a link goes down, as with Xid 79 and a GPU reset: leptonai/gpud, sxid/README.md."""
SILENT: Mapping[str, Any] = {"state": "down", "counters": dict.fromkeys(TRAFFIC, 0)}
"""Scenario of a port that is down and has counted nothing since boot."""

Where = Literal["gpu", "node", "port"]
"""Device that the verdict must name: the faulty GPU, the node (or the agent), the port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioStep:
    """A scenario that begins `at` seconds after the start of the fault and lasts until the next step."""

    at: float = 0.0
    gpu: Mapping[str, Any] = field(default_factory=dict)
    """Scenario of the GPU: see docs/simulation.md."""
    node: Mapping[str, Any] = field(default_factory=dict)
    """Scenario of the node."""
    log: tuple[str, ...] = ()
    """Lines of the kernel log; {bus} is the PCI address of the GPU in the kernel's notation."""
    act: Callable[[World], object] | None = None
    """Action that a scenario cannot express."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRow:
    """One row of the table of faults."""

    name: str
    check: str
    """Check that must raise a verdict."""
    where: Where = "gpu"
    port: str = PORT
    """Port that the verdict must name if `where` is a port."""
    action: Action = Action.INSPECT
    steps: tuple[ScenarioStep, ...]
    on: Callable[[Profile], bool] = lambda _: True
    """Returns whether the fault can happen on this profile."""
    within: float | None = None
    """Deadline in seconds; None: the delay of the check plus a minute."""
    before: Mapping[str, Any] = field(default_factory=lambda: {"busy": True})
    """Scenario of the node before and during the fault."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    hides: bool = False
    """True if the GPU cannot be read, so that its other faults cannot be detected."""
    miss: str = ""
    """Reason why the fault is not found, in one sentence."""
    second_notification: str = ""
    """What the two notifications are about, if the fault has two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """One row of the table of disturbances, which are no faults."""

    name: str
    act: Callable[[World], object] | None = None
    """Action that is repeated every `every` seconds."""
    every: float = 600.0
    before: Mapping[str, Any] = field(default_factory=lambda: {"busy": True})
    """Scenario of the node at the start."""
    on: Callable[[Profile], bool] = lambda _: True
    uptime: float = 86400.0
    """Seconds for which the host has run when the agent starts."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    expected_verdicts: Mapping[str, str] = field(default_factory=dict)
    """Checks that must raise a verdict below `fail`, with the reason in one sentence."""


def once(**gpu: Any) -> tuple[ScenarioStep, ...]:
    """Return one step with a permanent scenario of the GPU."""
    return (ScenarioStep(gpu=gpu),)


def growing(rate: float, value: float = 0.0) -> dict[str, Any]:
    """Return the scenario of a counter that begins to grow by `rate` per second."""
    return {"value": value, "rate": rate, "from": NOW}
