"""Published all-reduce bandwidths.

Sizes are written in MiB and GiB (2^20, 2^30 bytes), bandwidths in GB/s (1e9 bytes per second).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from gpumon.probe.core.baseline import SourcedFigure
from gpumon.probe.core.probes import GIB, MIB
from gpumon.probe.core.result import Measurement

NEAR = 4
"""Max ratio of published to measured size. Bandwidth grows little with size (8 H200: 2 % from 4 to 16 GiB)."""

_ML = "stas00/ml-engineering, network/README.md"
_H100_PEAK = "NVIDIA/nccl-tests#212, peak, taken for that of 16 GiB"


class Published(NamedTuple):
    """A row of TABLE: a published all-reduce bandwidth for a GPU model, number of ranks, algorithm and size."""

    names: str
    """Regular expression that must match the whole product name that NVML returns."""
    ranks: int
    bytes: int
    busbw: float
    """Bus bandwidth of an all-reduce in bytes per second."""
    source: str
    algorithm: str = "default"


_A100, _H200, _B200 = r"NVIDIA A100-SXM4-\d+GB", r"NVIDIA H200", r"NVIDIA B200"
_H100, _B300 = r"NVIDIA H100 80GB HBM3", r"NVIDIA B300.*"
_AS_H200 = f"as H200, whose links are the same: {_ML}"

TABLE: tuple[Published, ...] = (
    Published(_A100, 8, 256 * MIB, 194e9, _ML),
    Published(_A100, 8, GIB, 229e9, _ML),
    Published(_A100, 8, 16 * GIB, 234.9e9, _ML),
    Published(_H100, 8, 256 * MIB, 436e9, _AS_H200),
    Published(_H100, 8, 512 * MIB, 450e9, _AS_H200),
    Published(_H100, 8, 16 * GIB, 480e9, _H100_PEAK),
    Published(_H100, 8, 16 * GIB, 370e9, _H100_PEAK, algorithm="ring"),
    Published(_H200, 4, 8 * GIB, 363e9, _ML),
    Published(_H200, 5, 8 * GIB, 414e9, _ML),
    Published(_H200, 6, 8 * GIB, 436e9, _ML),
    Published(_H200, 7, 8 * GIB, 460e9, _ML),
    Published(_H200, 8, 64 * MIB, 346e9, _ML),
    Published(_H200, 8, 128 * MIB, 402e9, _ML),
    Published(_H200, 8, 256 * MIB, 436e9, _ML),
    Published(_H200, 8, 512 * MIB, 450e9, _ML),
    Published(_H200, 8, 2 * GIB, 469e9, _ML),
    Published(_H200, 8, 4 * GIB, 473e9, _ML),
    Published(_H200, 8, 16 * GIB, 482.3e9, _ML),
    Published(_H200, 8, 16 * GIB, 367.6e9, _ML, algorithm="ring"),
    Published(_B200, 4, 8 * GIB, 673e9, _ML),
    Published(_B200, 5, 8 * GIB, 678e9, _ML),
    Published(_B200, 6, 8 * GIB, 778e9, _ML),
    Published(_B200, 7, 8 * GIB, 811e9, _ML),
    Published(_B200, 8, 256 * MIB, 646e9, _ML),
    Published(_B200, 8, GIB, 723e9, _ML),
    Published(_B200, 8, 8 * GIB, 838e9, _ML),
    Published(_B200, 8, 8 * GIB, 682e9, _ML, algorithm="ring"),
    Published(_B200, 8, 16 * GIB, 845.7e9, _ML),
    Published(_B300, 8, 16 * GIB, 845e9, "NVIDIA/nccl#2140, size not given, assumed 16 GiB"),
    Published(_B300, 8, 16 * GIB, 695e9, "NVIDIA/nccl#2140, size not given, assumed 16 GiB", algorithm="ring"),
)
"""Published bandwidths, sorted by size, of boards with SXM GPUs. Those of PCIe cards depend on their NVLink bridges."""


def figure(model: str, ranks: int, measurement: Measurement, *, sharp: bool = True) -> SourcedFigure | None:
    """Return the published bandwidth at the size nearest to the measured one, with its source; None if there is none.

    Sizes count only up to NEAR times the measured one. Without NVLink SHARP (`sharp`) the figure is that of the ring.
    """
    if measurement.operation != "all_reduce":
        return None
    rows = [
        row
        for row in _rows(model, ranks, measurement.algorithm if sharp else "ring")
        if row.bytes <= NEAR * measurement.size
    ]
    best = min(rows, key=lambda row: max(row.bytes / measurement.size, measurement.size / row.bytes), default=None)
    return None if best is None else (best.busbw, best.source)


def gain(model: str, ranks: int, size: int) -> float | None:
    """Return a lower limit of the ratio of default to ring bandwidth at `size` bytes; None if unknown or not above 1.

    It is the default up to this size divided by the ring from this size on, because bandwidth grows with the size.
    """
    default = max((row.busbw for row in _rows(model, ranks, "default") if row.bytes <= size), default=None)
    ring = min((row.busbw for row in _rows(model, ranks, "ring") if row.bytes >= size), default=None)
    return default / ring if default is not None and ring is not None and default > ring else None


def _rows(model: str, ranks: int, algorithm: str) -> Iterator[Published]:
    for row in TABLE:
        if (row.ranks, row.algorithm) == (ranks, algorithm) and re.fullmatch(row.names, model):
            yield row
