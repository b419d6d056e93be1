"""TABLE: what hosts with known GPUs come to, as others have published it. Sizes in GiB (2^30), rates in GB/s (1e9)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpumon.probe.core.baseline import Figure
from gpumon.probe.core.probes import GIB, MIB
from gpumon.probe.core.result import Measurement

NEAR = 4
"""Times the measured size: so much larger ones come to hardly more (8 H200: 16 GiB to 2 % more than 4 GiB)."""

_ML = "stas00/ml-engineering, network/README.md"
_H100_PEAK = "NVIDIA/nccl-tests#212, peak, taken for that of 16 GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One row: what a run on one host came to."""

    names: str
    """Regular expression for the whole product name, as NVML gives it."""
    ranks: int
    algorithm: str = "default"
    bytes: int
    busbw: float
    """Of an all-reduce, in bytes a second."""
    source: str


def _row(names: str, ranks: int, size: int, gigabytes: float, source: str, *, algorithm: str = "default") -> Published:
    return Published(names=names, ranks=ranks, algorithm=algorithm, bytes=size, busbw=gigabytes * 1e9, source=source)


_A100, _H200, _B200 = r"NVIDIA A100-SXM4-\d+GB", r"NVIDIA H200", r"NVIDIA B200"
_H100, _B300 = r"NVIDIA H100 80GB HBM3", r"NVIDIA B300.*"
_AS_H200 = f"as H200, whose links are the same: {_ML}"

TABLE: tuple[Published, ...] = (
    _row(_A100, 8, 256 * MIB, 194, _ML),
    _row(_A100, 8, GIB, 229, _ML),
    _row(_A100, 8, 16 * GIB, 234.9, _ML),
    _row(_H100, 8, 256 * MIB, 436, _AS_H200),
    _row(_H100, 8, 512 * MIB, 450, _AS_H200),
    _row(_H100, 8, 16 * GIB, 480, _H100_PEAK),
    _row(_H100, 8, 16 * GIB, 370, _H100_PEAK, algorithm="ring"),
    _row(_H200, 4, 8 * GIB, 363, _ML),
    _row(_H200, 5, 8 * GIB, 414, _ML),
    _row(_H200, 6, 8 * GIB, 436, _ML),
    _row(_H200, 7, 8 * GIB, 460, _ML),
    _row(_H200, 8, 64 * MIB, 346, _ML),
    _row(_H200, 8, 128 * MIB, 402, _ML),
    _row(_H200, 8, 256 * MIB, 436, _ML),
    _row(_H200, 8, 512 * MIB, 450, _ML),
    _row(_H200, 8, 2 * GIB, 469, _ML),
    _row(_H200, 8, 4 * GIB, 473, _ML),
    _row(_H200, 8, 16 * GIB, 482.3, _ML),
    _row(_H200, 8, 16 * GIB, 367.6, _ML, algorithm="ring"),
    _row(_B200, 4, 8 * GIB, 673, _ML),
    _row(_B200, 5, 8 * GIB, 678, _ML),
    _row(_B200, 6, 8 * GIB, 778, _ML),
    _row(_B200, 7, 8 * GIB, 811, _ML),
    _row(_B200, 8, 256 * MIB, 646, _ML),
    _row(_B200, 8, GIB, 723, _ML),
    _row(_B200, 8, 8 * GIB, 838, _ML),
    _row(_B200, 8, 8 * GIB, 682, _ML, algorithm="ring"),
    _row(_B200, 8, 16 * GIB, 845.7, _ML),
    _row(_B300, 8, 16 * GIB, 845, "NVIDIA/nccl#2140, size not told, taken for 16 GiB"),
    _row(_B300, 8, 16 * GIB, 695, "NVIDIA/nccl#2140, size not told, taken for 16 GiB", algorithm="ring"),
)
"""Of one product, ranks and algorithm the smallest size first: bandwidth grows with the size.

Only boards that are soldered together: where a bridge is sold apart, nobody can tell what the links should carry.
"""


def figure(model: str, ranks: int, measurement: Measurement) -> Figure | None:
    """What is known of the nearest published size, of two that are as near the smaller; None where nobody has one.

    A larger one only where it is near: beside one that is much smaller, a default without NVLink SHARP looks well.
    """
    if measurement.collective != "all_reduce":
        return None
    known = [one for one in _of(model, ranks, measurement.algorithm) if one.bytes <= NEAR * measurement.bytes]
    best = min(known, key=lambda one: max(one.bytes / measurement.bytes, measurement.bytes / one.bytes), default=None)
    return None if best is None else (best.busbw, best.source)


def gain(model: str, ranks: int, size: int) -> float | None:
    """How many times the ring's bandwidth the default reaches at the least, in an all-reduce of this size.

    As bandwidth grows with the size, the default of a smaller one and the ring of a larger one bound it. None where
    they do not, as where the two were not published or NVLink SHARP adds nothing.
    """
    default = max((one.busbw for one in _of(model, ranks, "default") if one.bytes <= size), default=None)
    ring = min((one.busbw for one in _of(model, ranks, "ring") if one.bytes >= size), default=None)
    return default / ring if default is not None and ring is not None and default > ring else None


def _of(model: str, ranks: int, algorithm: str) -> Iterator[Published]:
    for one in TABLE:
        if (one.ranks, one.algorithm) == (ranks, algorithm) and re.fullmatch(one.names, model):
            yield one
