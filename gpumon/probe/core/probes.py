"""Table of the probes, which are the kinds of measurement that a run can make.

A new probe needs a row here. A new operation also needs a row in the TABLE of the worker's collectives.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

ALIGNMENT = 16
"""Alignment in bytes of each rank's share of an array."""
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ALL_REDUCE = "allreduce"
"""Name of the probe that runs by schedule and has Prometheus metrics. The other probes run only on request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Parameters of a probe for one backend (NCCL on GPUs, or gloo on the CPU)."""

    backend: str
    device: str
    """Device type in torch's notation: cuda or cpu."""
    sizes: tuple[int, ...]
    """Sizes in bytes: a small one for latency, up to one that saturates the links."""
    sizes_if_fit: tuple[int, ...] = ()
    """Larger sizes in bytes; each is measured only if the GPUs have enough free memory."""
    deadline: float
    """Max seconds from the start of a run to its last result. Ranks that are not done by then are killed."""
    algorithms: tuple[str, ...] = ("default",)
    """Keys of ALGORITHMS. Each algorithm is measured by a separate set of ranks."""
    min_baseline_ratio: float
    """A bandwidth below this share of the host's own median is too low, unless results of this host vary that much."""


_GPU = Setting(
    backend="nccl",
    device="cuda",
    sizes=(KIB, MIB, 64 * MIB, GIB),
    deadline=300.0,
    min_baseline_ratio=0.9,
)
_CPU = Setting(
    backend="gloo",
    device="cpu",
    sizes=(KIB, MIB, 16 * MIB, 64 * MIB),
    deadline=60.0,
    min_baseline_ratio=0.5,  # it shares the cores with other programs
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One kind of measurement that a run can make, such as all-reduce bandwidth. A row of TABLE."""

    name: str
    title: str
    collectives: tuple[str, ...]
    """Names of the collectives to time, as in the TABLE of the worker's collectives.py."""
    worker: Path = Path(__file__).parents[1] / "worker"
    """Folder of the rank program. It is run by its path, because the interpreter that has torch need not have
    gpumon.
    """
    alone: bool = False
    """Whether each rank works by itself, without the other ranks, so that one GPU is enough."""
    shares: bool = False
    """Whether the array is divided equally among the ranks."""
    bus_factor: Callable[[int], float]
    """Ratio of bus bandwidth to algorithm bandwidth as nccl-tests defines it. The argument is the number of ranks."""
    gpu: Setting = _GPU
    cpu: Setting = _CPU
    interval: float = 6 * 3600.0
    """Seconds between scheduled runs."""
    jitter: float = 600.0
    """Max seconds by which a scheduled run is randomly moved, so that nodes do not run at the same time."""
    initial_delay: float = 60.0
    """Seconds from the agent's start to the first scheduled run."""
    initial_delay_simulated: float = 5.0
    min_idle: float = 600.0
    """Seconds for which the GPUs must have been idle before a scheduled run. It is 0 on a simulated node."""

    def participating_bytes(self, size: int, ranks: int) -> int:
        """Return how many bytes of an array of `size` bytes a collective uses.

        If the array is divided among the ranks, each share is rounded down to a multiple of ALIGNMENT, but not to 0.
        """
        return ranks * max(ALIGNMENT, size // ranks // ALIGNMENT * ALIGNMENT) if self.shares else size


ALGORITHMS: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "ring": {"NCCL_ALGO": "Ring", "NCCL_NVLS_ENABLE": "0"},
}
"""NCCL environment variables of each algorithm. The ring runs without NVLink SHARP, so it measures the links alone."""


def _gather_and_distribute_factor(ranks: int) -> float:
    """Return the bus bandwidth factor of all-reduce, as nccl-tests defines it."""
    return 2 * (ranks - 1) / ranks


def _distribute_factor(ranks: int) -> float:
    """Return the bus bandwidth factor of all-gather, reduce-scatter and all-to-all, as nccl-tests defines it."""
    return (ranks - 1) / ranks


def _unit_factor(_ranks: int) -> float:
    return 1.0


TABLE = (
    Probe(
        name=ALL_REDUCE,
        title="all-reduce",
        collectives=("all_reduce",),
        bus_factor=_gather_and_distribute_factor,
        gpu=replace(_GPU, sizes_if_fit=(4 * GIB,), algorithms=("default", "ring")),
    ),
    Probe(
        name="allgather",
        title="all-gather",
        collectives=("all_gather",),
        shares=True,
        bus_factor=_distribute_factor,
    ),
    Probe(
        name="reducescatter",
        title="reduce-scatter",
        collectives=("reduce_scatter",),
        shares=True,
        bus_factor=_distribute_factor,
    ),
    Probe(
        name="alltoall",
        title="all-to-all",
        collectives=("all_to_all",),
        shares=True,
        bus_factor=_distribute_factor,
    ),
    Probe(
        name="sendrecv",
        title="send and receive",
        collectives=("send_receive",),
        bus_factor=_unit_factor,
    ),
    Probe(
        name="copy",
        title="copies between host and GPU",
        collectives=("host_to_device", "device_to_host"),
        alone=True,
        bus_factor=_unit_factor,
        gpu=replace(_GPU, sizes=(KIB, MIB, 64 * MIB, 256 * MIB)),  # each rank pins as much host memory
    ),
)
PROBES = {probe.name: probe for probe in TABLE}
