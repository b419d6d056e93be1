"""Table of the probes, which are the kinds of measurement that a run can make.

A new probe needs a row here. A new operation also needs a row in the TABLE of the worker's operations.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

ALIGNMENT = 16
"""Alignment in bytes of each rank's share of an array."""
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ALL_REDUCE = "allreduce"
"""Name of the probe whose metrics exist from the start, and which the page and the terminal show."""
NEVER = "never"
"""Schedule of a probe that runs only on request."""
DTYPE = "float32"
"""Element type in which a probe measures unless its row names others."""
ELEMENT_BYTES = {DTYPE: 4, "bfloat16": 2}
"""Bytes of an element, by element type in which a bandwidth can be measured."""
BUFFERS = 2
"""Buffers that a rank needs for a size. Most collectives, and pair exchanges, send from one and receive in another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Parameters of a probe for one backend (NCCL on GPUs, or gloo on the CPU)."""

    backend: str
    device: str
    """Device type in torch's notation: cuda or cpu."""
    sizes: tuple[int, ...]
    """Sizes in the probe's `size_unit`, from one whose time is mostly latency to one that saturates GPUs or links."""
    sizes_if_fit: tuple[int, ...] = ()
    """Larger sizes; each is measured only if the GPUs have enough free memory."""
    deadline: float
    """Max seconds from the start of a run to its last result. Ranks that are not done by then are killed."""
    algorithms: tuple[str, ...] = ("default",)
    """Keys of ALGORITHMS. Each algorithm is measured by a separate set of ranks."""
    min_baseline_ratio: float
    """Min share of the own median. A lower value is degraded, unless results of this host vary that much."""


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


Value = Callable[[int, int, float], float]
"""Function that returns a measured value from the size, the number of ranks and the seconds that an operation took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One kind of measurement that a run can make, such as all-reduce bandwidth. A row of TABLE."""

    name: str
    title: str
    quantity: str
    """What is measured, in one word, such as busbw. The name of its metric is by `metric_name`."""
    unit: str
    """Base unit of the values, as in names of metrics: bytes_per_second, flops_per_second, seconds."""
    value: Value
    raw_quantity: str = ""
    raw_value: Value | None = None
    """A second value in the same unit, without the factor for the number of ranks: algorithm bandwidth."""
    higher_is_better: bool = True
    operations: tuple[str, ...]
    """Names of the operations to time, as in the TABLE of the worker's operations.py."""
    dtypes: tuple[str, ...] = (DTYPE,)
    """Element types that are always measured and exported. If there are several, the metrics have the label precision.
    """
    alone: bool = False
    """Whether each rank works by itself, so that one GPU is enough. The slowest rank determines the result."""
    ranks: int = 2
    """Number of ranks on the CPU. On GPUs each GPU has one rank."""
    size_unit: str = "bytes"
    """What a size counts, in the plural. It is the name of the label of the metrics too."""
    memory: Callable[[int], int] = lambda size: BUFFERS * size
    """Function that returns the bytes of memory that the buffers of one rank need for a size."""
    worker: Path = Path(__file__).parents[1] / "worker"
    """Folder of the rank program, which runs by its path: an interpreter with torch need not have gpumon."""
    gpu: Setting = _GPU
    cpu: Setting = _CPU
    schedule: str = NEVER
    """Default schedule: an interval such as 6h, crontab text such as `0 3 * * sun`, or never."""
    jitter: float = 600.0
    """Max seconds by which a scheduled run is randomly delayed, so that nodes do not run at the same time."""
    initial_delay: float = 60.0
    """Seconds from the agent's start to the first scheduled run."""
    initial_delay_simulated: float = 5.0
    min_idle: float = 600.0
    """Seconds for which the GPUs must have been idle before a scheduled run. It is 0 on a simulated node."""

    @property
    def metric(self) -> str:
        return metric_name(self.quantity, self.unit)

    @property
    def raw_metric(self) -> str:
        return metric_name(self.raw_quantity, self.unit)

    def measured_dtypes(self, more: Iterable[str]) -> tuple[str, ...]:
        """Return the element types to measure: those of the row and, if the probe moves data, `more`."""
        return tuple(dict.fromkeys((*self.dtypes, *(more if self.size_unit == "bytes" else ()))))


def metric_name(quantity: str, unit: str) -> str:
    """Return the name of a metric without prefix: quantity and unit, or the unit if it begins with the quantity."""
    return unit if unit.startswith(quantity) else f"{quantity}_{unit}"


ALGORITHMS: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "ring": {"NCCL_ALGO": "Ring", "NCCL_NVLS_ENABLE": "0"},
}
"""NCCL environment variables of each algorithm. The ring runs without NVLink SHARP, so it measures the links alone."""


def participating_bytes(size: int, ranks: int) -> int:
    """Return the bytes of an array that equal shares use, each rounded down to a multiple of ALIGNMENT but not to 0."""
    return ranks * max(ALIGNMENT, size // ranks // ALIGNMENT * ALIGNMENT)


def _bandwidth(
    name: str,
    title: str,
    *operations: str,
    factor: Callable[[int], float] = lambda _: 1.0,
    used: Callable[[int, int], int] = lambda size, _: size,
    alone: bool = False,
    gpu: Setting = _GPU,
    schedule: str = NEVER,
) -> Probe:
    """Return a probe that measures bus bandwidth as nccl-tests defines it: `used` bytes per second, times `factor`."""

    def algorithm_bandwidth(size: int, ranks: int, seconds: float) -> float:
        return used(size, ranks) / seconds

    return Probe(
        name=name,
        title=title,
        quantity="busbw",
        unit="bytes_per_second",
        value=lambda size, ranks, seconds: algorithm_bandwidth(size, ranks, seconds) * factor(ranks),
        raw_quantity="algbw",
        raw_value=algorithm_bandwidth,
        operations=operations,
        alone=alone,
        gpu=gpu,
        schedule=schedule,
    )


def _distribute_factor(ranks: int) -> float:
    """Return the bus bandwidth factor of all-gather, reduce-scatter and all-to-all."""
    return (ranks - 1) / ranks


TABLE = (
    _bandwidth(
        ALL_REDUCE,
        "all-reduce",
        "all_reduce",
        factor=lambda ranks: 2 * (ranks - 1) / ranks,
        gpu=replace(_GPU, sizes_if_fit=(4 * GIB,), algorithms=("default", "ring")),
        schedule="6h",
    ),
    _bandwidth("allgather", "all-gather", "all_gather", factor=_distribute_factor, used=participating_bytes),
    _bandwidth(
        "reducescatter", "reduce-scatter", "reduce_scatter", factor=_distribute_factor, used=participating_bytes
    ),
    _bandwidth("alltoall", "all-to-all", "all_to_all", factor=_distribute_factor, used=participating_bytes),
    _bandwidth("sendrecv", "send-receive", "send_receive"),
    _bandwidth(
        "copy",
        "host-GPU copy",
        *("host_to_device", "device_to_host"),
        alone=True,
        gpu=replace(_GPU, sizes=(KIB, MIB, 64 * MIB, 256 * MIB)),  # each rank pins as much host memory
    ),
)
PROBES = {probe.name: probe for probe in TABLE}
SCHEDULED = tuple(probe for probe in TABLE if probe.schedule != NEVER)
