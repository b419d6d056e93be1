"""Orders: the configuration of a child process, sent as one line of JSON to the child's standard input.

The orders of a running child, except `watch`, cannot change: the daemon replaces the child instead.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a child does not load the module, to save memory
    from typing_extensions import Self

EXIT_MISMATCH = 18
"""Exit code if the NVML library does not match the kernel module: only a new process can load another version."""

INDEX_PREFIX = "index "
"""Prefix of a name such as "index 4", which replaces the bus id of a GPU if the bus id could not be looked up."""


def is_recording(profile: str) -> bool:
    """Return True if `profile` is the path of a recording (with a slash or dot), False if it is a profile's name."""
    return "/" in profile or "." in profile


class SimulationError(ValueError):
    """Raised for a profile or scenario that cannot be simulated. The message names the input and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Settings of the simulated node that a child reads instead of the hardware."""

    profile: str
    """Name of the profile, or path of a recording."""
    epoch: float
    """Boot clock at which the simulated node started. All processes get the same value, to simulate the same node."""
    scenario: str | None = None
    trace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What the orders for every child have."""

    page: int = -1
    """File descriptor of the call page (model/call_progress.py). Set at the start of a child."""
    parent: int = 0
    """Process id of the daemon. The child ends when this process ends. Set at the start of a child."""
    sysfs: str = "/sys"
    simulation: Simulation | None = None
    log_level: str = "info"
    log_format: str = "logfmt"
    quarantined: tuple[str, ...] = ()
    """Subjects (GPUs by bus id, devices, readers) that are not read, because they are quarantined or released."""
    trial: str | None = None
    """The subject to retry. The child reads once, sends a TrialResult and ends."""
    watch: bool = False
    """For a sampler: True to read, at every poll, the GPU's processes and, if that is fast enough, the whole slow tier.
    A later line on the child's input changes this, because replacing the child would leave a gap in a probe's readings.
    """

    def encode(self) -> bytes:
        """Return the orders as one line of JSON with its newline."""
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Self:
        """Return the orders in a line from `encode`."""
        values: dict[str, Any] = json.loads(line)
        simulation = values.pop("simulation")
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**values, simulation=simulation and Simulation(**simulation))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOrders(Orders):
    """Orders for a sampler child. A trial child reads only its GPU."""

    interval: float = 1.0
    exclude: tuple[str, ...] = ()
    """GPUs that the configuration excludes, by bus id, uuid or index. They are never opened."""
    first: tuple[str, ...] = ()
    """Bus ids of the GPUs that answered an earlier sampler. The child opens them first, in this order."""
    events: bool = True
    """False to read no Xid events from NVML, because earlier samplers hung or crashed while waiting for them."""
    gpm: bool = True
    """True to read GPU performance monitoring."""
    detailed: bool = True
    """True to read also the metrics that are used only as detailed metrics."""
    largest_processes: int = 0
    """Maximum number of processes per GPU whose memory is reported by name; 0 for none."""
    procfs: str = "/proc"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOrders(Orders):
    """Orders for a host child, which reads ports, services, processes, schedulers and owners."""

    exclude: tuple[str, ...] = ()
    """Patterns of the network adapters that the configuration excludes. The ports of these adapters are never read."""
    fabric: tuple[str, ...] = ()
    """Patterns of the fabric's network adapters. The child logs a warning for a pattern that matches no adapter."""
    root: str = "/"
    """Root directory of the host's file system. All paths of the host are below it."""
    mapping_directory: str = ""
    """Folder with the files of a scheduler's prolog, which name the jobs that hold GPUs; empty for none."""
    kubelet_socket: str = ""
    """Socket of the kubelet's PodResources; empty for none."""
