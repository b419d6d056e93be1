"""What makes a fault, step by step."""

from __future__ import annotations

from typing import Any

from benchmarks.truth.fault import PORT, Step
from benchmarks.truth.world import World

HANGING = ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"]
"""One of them is called in every poll of every GPU."""
MANY = 8
"""GPUs of which none is slow, and all together are."""


def xid(code: int, text: str, **also: Any) -> tuple[Step, ...]:
    """An Xid that both NVML and the kernel log tell of."""
    return (Step(gpu={"xids": [code], **also}, log=(f"NVRM: Xid (PCI:{{bus}}): {code}, {text}",)),)


def xids(code: int, text: str, times: int, pause: float) -> tuple[Step, ...]:
    """Several, with so many seconds between them."""
    line = f"NVRM: Xid (PCI:{{bus}}): {code}, {text}"
    return tuple(Step(at=n * pause, gpu={"xids": [code] * (n + 1)}, log=(line,)) for n in range(times))


def restarted(**gpu: Any) -> tuple[Step, ...]:
    """So that the GPU is looked up anew."""
    return (Step(gpu=gpu), Step(at=1.0, gpu=gpu, act=World.restart))


def on_port(**fault: Any) -> tuple[Step, ...]:
    return (Step(node={"ports": {PORT: fault}}),)


def counting(**counters: Any) -> tuple[Step, ...]:
    return on_port(counters=counters)


def flaps(times: int, pause: float, **down: Any) -> tuple[Step, ...]:
    """Down for half of each pause. `down`: of the node, or of the GPU."""
    return tuple(step for n in range(times) for step in (Step(at=n * pause, **down), Step(at=(n + 0.5) * pause)))


def unkillable(world: World) -> None:
    world.host.unkillable = True
