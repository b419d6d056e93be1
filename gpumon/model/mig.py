"""Metric table of a MIG instance."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from gpumon.model.gpu import Gpu, memory_source
from gpumon.model.reading import SLOW, agent, reading, rows


def _gpu_metric(name: str) -> Any:
    """Return the dataclass field of a metric that `Gpu` also has, with the tier SLOW and a note for MIG instances."""
    row = replace(rows(Gpu)[name], every=SLOW, note="Hopper and later, for the whole GPU instance.")
    return field(default=None, metadata={"row": row})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mig:
    """Readings of one MIG compute instance. All are in the SLOW tier, because a node may have 56 instances."""

    PREFIX: ClassVar[str] = "gpumon_mig_"
    LABELS: ClassVar[tuple[str, ...]] = (
        "gpu",
        "uuid",
        "mig_uuid",
        "gpu_instance_id",
        "compute_instance_id",
        "profile",
    )

    info: float | None = agent("Always 1; the labels identify the MIG instance.")
    memory_total_bytes: float | None = reading("Memory size of the MIG instance.", memory_source("total"), every=SLOW)
    memory_used_bytes: float | None = reading("Memory in use in the MIG instance.", memory_source("used"), every=SLOW)
    memory_free_bytes: float | None = reading(
        "Free memory in the MIG instance.", memory_source("free"), every=SLOW, detail=True
    )
    sm_active_ratio: float | None = _gpu_metric("sm_active_ratio")
    sm_occupancy_ratio: float | None = _gpu_metric("sm_occupancy_ratio")
    tensor_active_ratio: float | None = _gpu_metric("tensor_active_ratio")
    dram_active_ratio: float | None = _gpu_metric("dram_active_ratio")
    graphics_active_ratio: float | None = _gpu_metric("graphics_active_ratio")
    fp16_active_ratio: float | None = _gpu_metric("fp16_active_ratio")
    fp32_active_ratio: float | None = _gpu_metric("fp32_active_ratio")
    fp64_active_ratio: float | None = _gpu_metric("fp64_active_ratio")
    integer_active_ratio: float | None = _gpu_metric("integer_active_ratio")
