"""Detects a utilization that is latched at 100 % on an idle GPU. Pure.

From Blackwell on, the utilization can stay at 100 % after a process was killed while its kernel ran, until another
process opens and cleanly closes a CUDA context on the GPU (Datura-ai/lium-io#1142).
"""

from __future__ import annotations

from gpumon.health.architectures import RANKS
from gpumon.health.products import is_coherent
from gpumon.model.gpu import Gpu
from gpumon.probe.core.preflight import IDLE_UTILIZATION, idle_bytes

LATCHED = 0.99
"""Minimum utilization that may be latched."""


def memory_in_use(gpu: Gpu) -> float | None:
    """Return the bytes of GPU memory in use; None on Grace hosts, whose kernel also keeps other pages in GPU memory."""
    return None if is_coherent(gpu.name or "") else gpu.memory_used_bytes


def is_utilization_latched(gpu: Gpu) -> bool:
    """Return True if the GPU reports full utilization, but no process, and neither memory nor engines are in use.

    False before Blackwell, and if neither memory in use nor activity of the engines (GPM) is reported. Without the
    memory no engine may show any activity: in a container the agent may not see the processes of a job.
    """
    memory, engines = memory_in_use(gpu), gpu.sm_active_ratio
    return (
        RANKS.get(gpu.architecture or "Kepler", RANKS["Blackwell"]) >= RANKS["Blackwell"]
        and gpu.processes == 0
        and (gpu.utilization_ratio or 0.0) >= LATCHED
        and (memory is not None or engines is not None)
        and (memory or 0.0) <= idle_bytes(exact=gpu.memory_reserved_bytes is not None)
        and max(engines or 0.0, gpu.memory_utilization_ratio or 0.0)
        <= (IDLE_UTILIZATION if memory is not None else 0.0)
    )
