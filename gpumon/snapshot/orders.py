"""What a sampler is told, once, as one line of JSON on its input. An order changes by replacing the child."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

EXIT_MISMATCH = 18
"""Exit code of a sampler whose library no longer fits the kernel module: only a new process can load the new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Which simulated node to show instead of the real one."""

    profile: str
    epoch: float
    """Boot clock; shared, so that every process sees the same node."""
    scenario: str | None = None
    trace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """For a sampler, or with `trial` for a child that reads one GPU once."""

    page: int
    """Descriptor of the call page."""
    parent: int
    """Process id of the daemon, whose end is the child's end."""
    interval: float = 1.0
    exclude: tuple[str, ...] = ()
    """GPUs never to open, by configuration: bus id, uuid or index."""
    leave_aside: tuple[str, ...] = ()
    """Bus ids of GPUs whose calls do not return."""
    first: tuple[str, ...] = ()
    """Bus ids in the order in which to begin: what answered before comes before what may hang."""
    events: bool = True
    """False: ask for no Xids, because asking hangs or crashes."""
    gpm: bool = True
    """Whether to read GPU performance monitoring."""
    largest_processes: int = 0
    """How many processes of each GPU to name."""
    trial: str | None = None
    sysfs: str = "/sys"
    procfs: str = "/proc"
    simulation: Simulation | None = None
    log_level: str = "info"
    log_format: str = "logfmt"

    def encode(self) -> bytes:
        """One line."""
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"

    @staticmethod
    def decode(line: bytes) -> Orders:
        values = json.loads(line)
        simulation = values.pop("simulation")
        for name in ("exclude", "leave_aside", "first"):
            values[name] = tuple(values[name])
        return Orders(simulation=simulation and Simulation(**simulation), **values)
