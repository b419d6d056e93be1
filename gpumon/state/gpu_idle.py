"""Who used a GPU and since when nobody does, from one reading to the next; what the agent's own probe did is nobody's.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from gpumon.model.gpu import Gpu
from gpumon.model.now import Now
from gpumon.model.reading import Integral, rows
from gpumon.model.snapshot import GpuReading
from gpumon.probe.core.preflight import IDLE_TRAFFIC, idle_bytes

IDLE_UTILIZATION = 0.05
"""At most, for who would know since when a GPU is idle: a look at it may wake it."""
GAP_SECONDS = 120.0
"""After so long without a reading nobody knows who used the GPU meanwhile."""
_TRAFFIC = (
    *("pcie_receive_bytes_total", "pcie_transmit_bytes_total"),
    *("nvlink_receive_bytes_total", "nvlink_transmit_bytes_total"),
)


@cache
def busy_rows() -> tuple[str, ...]:
    """Rows of Gpu that say how much it was used: all that are integrals by nature, and none for want of a counter."""
    return tuple(name for name, row in rows(Gpu).items() if isinstance(row.source, Integral))


def without_own(seen: GpuReading) -> GpuReading:
    """The reading of a GPU that the probe loads: as if nobody had watched how busy it is."""
    unused: Mapping[str, Any] = {name: 0.0 for name in busy_rows() if name in seen.increments}
    return replace(seen, watched=0.0, increments={**seen.increments, **unused})


def traffic(before: GpuReading | None, seen: GpuReading) -> float | None:
    """Bytes a second over NVLink and PCIe, both ways, since the reading before; None where none is counted."""
    if before is None or before.gpu is None or seen.gpu is None or not seen.watched:
        return None
    gains = [
        now - was
        for was, now in ((getattr(before.gpu, name), getattr(seen.gpu, name)) for name in _TRAFFIC)
        if was is not None and now is not None and now >= was
    ]
    return sum(gains) / seen.watched if gains else None


def in_use(gpu: Gpu, moved: float | None) -> bool:
    """Whether anything shows that somebody uses it. `moved`: its traffic."""
    return bool(
        gpu.processes
        or (gpu.utilization_ratio or 0.0) > IDLE_UTILIZATION
        or (gpu.memory_used_bytes or 0.0) > idle_bytes(exact=gpu.memory_reserved_bytes is not None)
        or (moved or 0.0) > IDLE_TRAFFIC
    )


def idle_since(before: float | None, gpu: Gpu, moved: float | None, now: Now, *, unseen: float | None) -> float | None:
    """Boot clock since when nobody uses it; None while somebody does. `unseen`: seconds since it was last read."""
    if in_use(gpu, moved):
        return None
    return now.at if before is None or unseen is None or unseen > GAP_SECONDS else before
