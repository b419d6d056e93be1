"""Rows of the tables of faults and disturbances, and what several rows share: steps, and where a fault can happen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpumon_sim.board import Profile
from gpumon_sim.port_counters import TRAFFIC
from gpumon_sim.sim_fault import BUSY, anywhere

from benchmarks.truth.world import World
from gpumon.health.verdict import Action

SWITCH_LINK_DOWN = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
"""Logged whenever a link goes down, as with Xid 79 and a GPU reset: leptonai/gpud, sxid/README.md."""
SILENT: Mapping[str, Any] = {"state": "down", "counters": dict.fromkeys(TRAFFIC, 0)}
"""Scenario of a port that is down and has counted nothing since boot."""


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
    where: str = "gpu"
    """Device that the verdict must name: the faulty `gpu`, the `node` (or the agent), a job, or a port."""
    action: Action = Action.INSPECT
    steps: tuple[ScenarioStep, ...]
    on: Callable[[Profile], bool] = anywhere
    """Returns whether the fault can happen on this profile."""
    within: float | None = None
    """Deadline in seconds; None: the delay of the check plus a minute."""
    before: Mapping[str, Any] = field(default_factory=lambda: BUSY)
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
    before: Mapping[str, Any] = field(default_factory=lambda: BUSY)
    """Scenario of the node at the start."""
    on: Callable[[Profile], bool] = anywhere
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    expected_verdicts: Mapping[str, str] = field(default_factory=dict)
    """Checks that must raise a verdict below `fail`, with the reason in one sentence."""


# Steps


def once(**gpu: Any) -> tuple[ScenarioStep, ...]:
    """Return one step with a permanent scenario of the GPU."""
    return (ScenarioStep(gpu=gpu),)


def xid(code: int, text: str, **also: Any) -> tuple[ScenarioStep, ...]:
    """Return an Xid that both NVML and the kernel log report."""
    return (ScenarioStep(gpu={"xids": [code], **also}, log=(f"NVRM: Xid (PCI:{{bus}}): {code}, {text}",)),)


def xids(code: int, text: str, times: int, pause: float) -> tuple[ScenarioStep, ...]:
    """Return several Xids, `pause` seconds apart."""
    line = f"NVRM: Xid (PCI:{{bus}}): {code}, {text}"
    return tuple(ScenarioStep(at=n * pause, gpu={"xids": [code] * (n + 1)}, log=(line,)) for n in range(times))


def after_restart(**fault: Any) -> tuple[ScenarioStep, ...]:
    """Return a fault of node or GPU during which the agent is restarted, so that the GPU is looked up again."""
    return (ScenarioStep(**fault), ScenarioStep(at=1.0, **fault, act=World.restart))


def flaps(times: int, pause: float, **down: Any) -> tuple[ScenarioStep, ...]:
    """Return repeated faults, each active for half of `pause` seconds. `down` is a scenario of node or GPU."""
    return tuple(
        step for n in range(times) for step in (ScenarioStep(at=n * pause, **down), ScenarioStep(at=(n + 0.5) * pause))
    )


def unkillable(world: World) -> None:
    world.host.unkillable = True
