"""Orders: the configuration of a child process, sent as one line of JSON on its input.

To change it, the daemon replaces the child.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

EXIT_MISMATCH = 18
"""Exit code of a sampler whose library no longer matches the kernel module. Only a new process can load the new
library.
"""

INDEX_PREFIX = "index "
"""Prefix of the name ("index 4") that is used in place of the bus id of a GPU whose bus id could not be looked up."""


def is_recording(profile: str) -> bool:
    """Return True if `profile` is the path of a recording, False if it is the name of a profile."""
    return "/" in profile or "." in profile


class SimulationError(ValueError):
    """Raised for a profile or scenario that cannot be simulated. The message names the input and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Settings of the simulated node that a child reads instead of the hardware."""

    profile: str
    """Name of the profile, or path of a recording."""
    epoch: float
    """Boot clock at which the simulated node started. It is shared, so that every process sees the same node."""
    scenario: str | None = None
    trace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOrders:
    """Orders of a sampler child. If `trial` is set, they are for a trial child, which reads one GPU once."""

    page: int
    """File descriptor of the page for the call in progress."""
    parent: int
    """Process id of the daemon; the child ends when the daemon ends."""
    interval: float = 1.0
    exclude: tuple[str, ...] = ()
    """GPUs that the configuration excludes, by bus id, uuid or index. They are never opened."""
    do_not_open: tuple[str, ...] = ()
    """Bus ids of GPUs that are quarantined or released. They are not opened."""
    first: tuple[str, ...] = ()
    """Bus ids of GPUs in the order in which to open them. GPUs that answered before come before GPUs that may hang."""
    events: bool = True
    """False to not wait for Xid events, because waiting for them hung or crashed."""
    gpm: bool = True
    """True to read GPU performance monitoring."""
    largest_processes: int = 0
    """Maximum number of processes per GPU whose memory is reported by name; 0 for none."""
    watch: bool = False
    """True to read all rows of the slow tier at every poll, processes first. A line on the child's input changes
    this order while the child runs, because replacing the child would leave a gap in the readings of a probe run.
    """
    trial: str | None = None
    record: int | None = None
    """File descriptor to which driver calls and their results are recorded; None to record nothing."""
    survey: bool = False
    """True to make the driver calls that polls do not make once, and then end. Used with `record`."""
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
    """Orders of a links child."""

    page: int
    parent: int
    quarantined: tuple[str, ...] = ()
    """Names of devices and collectors that are not read, because reading their files blocks."""
    exclude: tuple[str, ...] = ()
    """Patterns of the network adapters that the configuration excludes. Their ports are never read."""
    fabric: tuple[str, ...] = ()
    """Patterns of the network adapters of the fabric. The child warns of those that match none."""
    sysfs: str = "/sys"
    root: str = "/"
    """Root directory of the host's file system, where systemd units are."""
    simulation: Simulation | None = None
    log_level: str = "info"
    log_format: str = "logfmt"

    def encode(self) -> bytes:
        return _encode(self)

    @staticmethod
    def decode(line: bytes) -> LinksOrders:
        return LinksOrders(**_decode(line, lists=("quarantined", "exclude", "fabric")))


def _encode(orders: SamplerOrders | LinksOrders) -> bytes:
    """Return the orders as one line of JSON with its newline."""
    return json.dumps(dataclasses.asdict(orders)).encode() + b"\n"


def _decode(line: bytes, *, lists: tuple[str, ...]) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(line)
    simulation = values.pop("simulation")
    values |= {name: tuple(values[name]) for name in lists}
    return values | {"simulation": simulation and Simulation(**simulation)}
