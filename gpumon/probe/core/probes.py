"""TABLE: the probes. A new probe is a row here, and a row in the worker's table if it measures something new."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

ALIGNMENT = 16
"""Alignment in bytes of each rank's share of an array."""
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ALL_REDUCE = "allreduce"
"""The probe that is scheduled, judged and exported; the others run on request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Parameters of a probe for one backend."""

    backend: str
    device: str
    """Device type as torch names it: cuda or cpu."""
    sizes: tuple[int, ...]
    """Sizes in bytes: a small one for latency, up to one that saturates the links."""
    sizes_if_fit: tuple[int, ...] = ()
    """Larger sizes, if there is enough memory."""
    deadline: float
    """Seconds from the start to the last result; then the ranks are killed."""
    algorithms: tuple[str, ...] = ("default",)
    """Keys of ALGORITHMS; each is measured by its own set of ranks."""
    min_baseline_ratio: float
    """Share of this host's own median below which a run is slow."""


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
    """One kind of measurement."""

    name: str
    title: str
    collectives: tuple[str, ...]
    """Names in the worker's table."""
    worker: Path = Path(__file__).parents[1] / "worker"
    """Run by its path: the interpreter that has torch need not have gpumon."""
    alone: bool = False
    """Each rank acts by itself: one GPU is enough."""
    shares: bool = False
    """Each rank holds an equal share of the array."""
    bus_factor: Callable[[int], float]
    """Bus bandwidth over algorithm bandwidth for a number of ranks, as nccl-tests defines it."""
    gpu: Setting = _GPU
    cpu: Setting = _CPU
    interval: float = 6 * 3600.0
    """Seconds between scheduled runs."""
    jitter: float = 600.0
    """Max seconds by which a scheduled run moves, so that nodes do not run at the same time."""
    first_after: float = 60.0
    """Seconds from the agent's start to the first run."""
    first_after_simulated: float = 5.0
    idle: float = 600.0
    """Min idle seconds of the GPUs before a scheduled run; none on a simulated node."""

    def participating_bytes(self, size: int, ranks: int) -> int:
        """Return the bytes of the array that take part: shares are rounded down, as in the worker."""
        return ranks * max(ALIGNMENT, size // ranks // ALIGNMENT * ALIGNMENT) if self.shares else size


ALGORITHMS: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "ring": {"NCCL_ALGO": "Ring", "NCCL_NVLS_ENABLE": "0"},
}
"""NCCL variables, which NCCL reads once in a process. The ring without NVLink SHARP shows what the links carry."""


def _gather_and_distribute_factor(ranks: int) -> float:
    """Return the factor of collectives in which each byte is gathered and distributed."""
    return 2 * (ranks - 1) / ranks


def _distribute_factor(ranks: int) -> float:
    """Return the factor of collectives in which each rank has one share already."""
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
