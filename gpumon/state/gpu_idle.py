"""Determines if a GPU is in use, and since when it is idle. Use by the agent's own probe does not count. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from gpumon.health.products import is_utilization_latched, memory_in_use
from gpumon.model.gpu import Gpu
from gpumon.model.instant import Now
from gpumon.model.reading import Integral, rows
from gpumon.model.snapshot import GpuReading
from gpumon.probe.core.preflight import IDLE_TRAFFIC, IDLE_UTILIZATION, idle_bytes

GAP_SECONDS = 120.0
"""Seconds without a reading after which it is unknown whether the GPU was used in between."""
_COUNTED = ("nvlink_receive_bytes_total", "nvlink_transmit_bytes_total")
_INTEGRATED = ("pcie_receive_bytes_total", "pcie_transmit_bytes_total")


@cache
def busy_rows() -> tuple[str, ...]:
    """Return the names of the rows of Gpu that measure how much the GPU is used.

    These are the rows that are always integrals. An integral that replaces an unsupported driver counter is not
    included.
    """
    return tuple(name for name, row in rows(Gpu).items() if isinstance(row.source, Integral))


def without_own_use(reading: GpuReading) -> GpuReading:
    """Return the reading with the increments of `busy_rows` set to 0, for a GPU that the agent's probe uses.

    The observed seconds (`watched`) are set to 0 too: the time since the last reading does not count as observed.
    """
    unused: Mapping[str, Any] = {name: 0.0 for name in busy_rows() if name in reading.increments}
    return replace(reading, watched=0.0, increments={**reading.increments, **unused})


def link_rates(
    before: GpuReading | None, reading: GpuReading, held: Mapping[str, float], own_at: float
) -> Mapping[str, float]:
    """Return the traffic over NVLink and PCIe in bytes per second, by row of Gpu.

    That over PCIe is since the last reading, that over NVLink between the last two readings of the slow tier. `held`:
    the result for the last reading. `own_at`: boot clock at which the agent's probe last used the GPU; counters that
    were read before do not count. A row whose traffic cannot be computed is absent.
    """
    if before is None or before.gpu is None or reading.gpu is None or not reading.watched:
        return {}
    pcie = {name: gain for name in _INTEGRATED if isinstance(gain := reading.increments.get(name), float)}
    rates = {name: gain / reading.watched for name, gain in pcie.items()}
    was_at, read_at = before.slow_at, reading.slow_at
    if was_at is None or read_at is None or read_at <= was_at:
        return rates | {name: held[name] for name in _COUNTED if name in held}
    counts = {name: (getattr(before.gpu, name), getattr(reading.gpu, name)) for name in _COUNTED}
    return rates | {
        name: (now - was) / (read_at - was_at)
        for name, (was, now) in counts.items()
        if was is not None and now is not None and now >= was and was_at > own_at
    }


def without_latched_use(reading: GpuReading) -> GpuReading:
    """Return the reading without busy time if the GPU's utilization is latched: the GPU is idle."""
    if reading.gpu is None or "busy_seconds_total" not in reading.increments or not is_utilization_latched(reading.gpu):
        return reading
    return replace(reading, increments={**reading.increments, "busy_seconds_total": 0.0})


def is_in_use(gpu: Gpu, moved: float | None) -> bool:
    """Return True if a reading shows that the GPU is in use. `moved` is its traffic in bytes per second.

    PCIe traffic is unknown on GPUs before Hopper. On these, a transfer shows as memory utilization and as memory in
    use.
    """
    utilization = 0.0 if is_utilization_latched(gpu) else gpu.utilization_ratio or 0.0
    return bool(
        gpu.processes
        or max(utilization, gpu.memory_utilization_ratio or 0.0) > IDLE_UTILIZATION
        or (memory_in_use(gpu) or 0.0) > idle_bytes(exact=gpu.memory_reserved_bytes is not None)
        or (moved or 0.0) > IDLE_TRAFFIC
    )


def idle_since(before: float | None, gpu: Gpu, moved: float | None, now: Now, *, unread: float | None) -> float | None:
    """Return the boot clock time since which the GPU is idle; None while it is in use.

    `before` is the result for the previous reading. `moved` is the GPU's traffic in bytes per second. `unread` is the
    number of seconds since the last reading, None if there was no reading or it failed.
    """
    if is_in_use(gpu, moved):
        return None
    return now.at if before is None or unread is None or unread > GAP_SECONDS else before
