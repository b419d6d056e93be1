"""Steps that several faults share."""

from __future__ import annotations

from typing import Any

from benchmarks.truth.fault import PORT, ScenarioStep
from benchmarks.truth.world import World

MANY = 8
"""Number of GPUs from which slow calls make a poll slow."""


def xid(code: int, text: str, **also: Any) -> tuple[ScenarioStep, ...]:
    """Return an Xid that both NVML and the kernel log report."""
    return (ScenarioStep(gpu={"xids": [code], **also}, log=(f"NVRM: Xid (PCI:{{bus}}): {code}, {text}",)),)


def xids(code: int, text: str, times: int, pause: float) -> tuple[ScenarioStep, ...]:
    """Return several Xids, `pause` seconds apart."""
    line = f"NVRM: Xid (PCI:{{bus}}): {code}, {text}"
    return tuple(ScenarioStep(at=n * pause, gpu={"xids": [code] * (n + 1)}, log=(line,)) for n in range(times))


def after_restart(**gpu: Any) -> tuple[ScenarioStep, ...]:
    """Return a fault during which the agent is restarted, so that the GPU is looked up again."""
    return (ScenarioStep(gpu=gpu), ScenarioStep(at=1.0, gpu=gpu, act=World.restart))


def on_port(**fault: Any) -> tuple[ScenarioStep, ...]:
    return (ScenarioStep(node={"ports": {PORT: fault}}),)


def counting(**counters: Any) -> tuple[ScenarioStep, ...]:
    return on_port(counters=counters)


def flaps(times: int, pause: float, **down: Any) -> tuple[ScenarioStep, ...]:
    """Return repeated faults, each active for half of `pause` seconds. `down` is a scenario of node or GPU."""
    return tuple(
        step for n in range(times) for step in (ScenarioStep(at=n * pause, **down), ScenarioStep(at=(n + 0.5) * pause))
    )


def unkillable(world: World) -> None:
    world.host.unkillable = True
