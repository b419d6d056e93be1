"""Steps that several faults share."""

from __future__ import annotations

from typing import Any

from benchmarks.truth.fault import PORT, Step
from benchmarks.truth.world import World

HANGING = ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"]
"""Functions of which every poll of a GPU calls one."""
MANY = 8
"""Number of GPUs from which slow calls make a poll slow."""


def xid(code: int, text: str, **also: Any) -> tuple[Step, ...]:
    """Return an Xid that both NVML and the kernel log report."""
    return (Step(gpu={"xids": [code], **also}, log=(f"NVRM: Xid (PCI:{{bus}}): {code}, {text}",)),)


def xids(code: int, text: str, times: int, pause: float) -> tuple[Step, ...]:
    """Return several Xids, `pause` seconds apart."""
    line = f"NVRM: Xid (PCI:{{bus}}): {code}, {text}"
    return tuple(Step(at=n * pause, gpu={"xids": [code] * (n + 1)}, log=(line,)) for n in range(times))


def after_restart(**gpu: Any) -> tuple[Step, ...]:
    """Return a fault during which the agent is restarted, so that the GPU is looked up again."""
    return (Step(gpu=gpu), Step(at=1.0, gpu=gpu, act=World.restart))


def on_port(**fault: Any) -> tuple[Step, ...]:
    return (Step(node={"ports": {PORT: fault}}),)


def counting(**counters: Any) -> tuple[Step, ...]:
    return on_port(counters=counters)


def flaps(times: int, pause: float, **down: Any) -> tuple[Step, ...]:
    """Return repeated faults, each active for half of `pause` seconds. `down` is a scenario of node or GPU."""
    return tuple(step for n in range(times) for step in (Step(at=n * pause, **down), Step(at=(n + 0.5) * pause)))


def unkillable(world: World) -> None:
    world.host.unkillable = True
