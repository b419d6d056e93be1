"""The orders of a child: one line of JSON on its input. An order changes by replacing the child."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

EXIT_MISMATCH = 18
"""Exit code of a sampler whose library no longer matches the kernel module. Only a new process can load the new
library.
"""


def is_recording(profile: str) -> bool:
    """Return whether this is the path of a recording rather than the name of a profile."""
    return "/" in profile or "." in profile


class SimulationError(ValueError):
    """A profile or scenario that cannot be simulated. The message names the input and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The simulated node to use instead of the real one."""

    profile: str
    """Its name, or the path of a recording."""
    epoch: float
    """Boot clock; shared, so that every process sees the same node."""
    scenario: str | None = None
    trace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOrders:
    """For a sampler, or with `trial` for a child that reads one GPU once."""

    page: int
    """Descriptor of the call page."""
    parent: int
    """Process id of the daemon; the child ends when the daemon ends."""
    interval: float = 1.0
    exclude: tuple[str, ...] = ()
    """GPUs never to open, by configuration: bus id, uuid or index."""
    do_not_open: tuple[str, ...] = ()
    """Bus ids of GPUs that are quarantined or released."""
    first: tuple[str, ...] = ()
    """Bus ids in the order in which to start: GPUs that answered before come before GPUs that may hang."""
    events: bool = True
    """False: do not wait for Xid events, because waiting hangs or crashes."""
    gpm: bool = True
    """Whether to read GPU performance monitoring."""
    largest_processes: int = 0
    """Maximum number of processes per GPU to report by name."""
    watch: bool = False
    """Whether to read everything of the slow tier at every poll, processes first. A line of input changes this order
    while the child runs, because a replacement would leave a gap in the readings of a probe run.
    """
    trial: str | None = None
    record: int | None = None
    """Descriptor to which the driver's calls and answers are recorded."""
    survey: bool = False
    """With `record`: make once the driver calls that polls do not make, and end."""
    sysfs: str = "/sys"
    procfs: str = "/proc"
    simulation: Simulation | None = None
    log_level: str = "info"
    log_format: str = "logfmt"

    def encode(self) -> bytes:
        return _encode(self)

    @staticmethod
    def decode(line: bytes) -> SamplerOrders:
        return SamplerOrders(**_decode(line, lists=("exclude", "do_not_open", "first")))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksOrders:
    """For the links child."""

    page: int
    parent: int
    quarantined: tuple[str, ...] = ()
    """Devices and collectors whose files do not answer."""
    sysfs: str = "/sys"
    root: str = "/"
    """Root of the host's file system, for systemd units."""
    simulation: Simulation | None = None
    log_level: str = "info"
    log_format: str = "logfmt"

    def encode(self) -> bytes:
        return _encode(self)

    @staticmethod
    def decode(line: bytes) -> LinksOrders:
        return LinksOrders(**_decode(line, lists=("quarantined",)))


def _encode(orders: SamplerOrders | LinksOrders) -> bytes:
    """Return the orders as one line."""
    return json.dumps(dataclasses.asdict(orders)).encode() + b"\n"


def _decode(line: bytes, *, lists: tuple[str, ...]) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(line)
    simulation = values.pop("simulation")
    values |= {name: tuple(values[name]) for name in lists}
    return values | {"simulation": simulation and Simulation(**simulation)}
