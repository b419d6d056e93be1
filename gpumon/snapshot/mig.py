"""TABLE: what is read of each MIG instance of each GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gpumon.snapshot.gpu import MEMORY_V2
from gpumon.snapshot.reading import SLOW, Call, Either, Gpm, agent, reading


def _gpm(text: str, metric: str, *, detail: bool = False) -> Any:
    return reading(text, Gpm(metric), every=SLOW, note="Hopper and later; of the whole GPU instance.", detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mig:
    """Readings of one compute instance. All slow: a full node has 56, and each takes several calls."""

    PREFIX: ClassVar[str] = "gpumon_mig_"
    LABELS: ClassVar[tuple[str, ...]] = (
        "gpu",
        "uuid",
        "mig_uuid",
        "gpu_instance_id",
        "compute_instance_id",
        "profile",
    )

    info: float | None = agent("Always 1; its labels say what this is.")
    memory_total_bytes: float | None = reading(
        "Memory of the instance.",
        Either(Call("MemoryInfo", (MEMORY_V2,), "total"), Call("MemoryInfo", (), "total")),
        every=SLOW,
    )
    memory_used_bytes: float | None = reading(
        "Memory of the instance allocated.",
        Either(Call("MemoryInfo", (MEMORY_V2,), "used"), Call("MemoryInfo", (), "used")),
        every=SLOW,
    )
    sm_active_ratio: float | None = _gpm("Share of time and multiprocessors with a warp resident.", "SM_UTIL")
    sm_occupancy_ratio: float | None = _gpm("Resident warps, as a share of what would fit.", "SM_OCCUPANCY")
    tensor_active_ratio: float | None = _gpm("Share of time in which the tensor cores worked.", "ANY_TENSOR_UTIL")
    dram_active_ratio: float | None = _gpm("Share of the memory bandwidth in use.", "DRAM_BW_UTIL")
    graphics_active_ratio: float | None = _gpm("Share of time with any engine at work.", "GRAPHICS_UTIL", detail=True)
    fp16_active_ratio: float | None = _gpm("Share of time in which the FP16 pipes worked.", "FP16_UTIL", detail=True)
    fp32_active_ratio: float | None = _gpm("Share of time in which the FP32 pipes worked.", "FP32_UTIL", detail=True)
    fp64_active_ratio: float | None = _gpm("Share of time in which the FP64 pipes worked.", "FP64_UTIL", detail=True)
    integer_active_ratio: float | None = _gpm(
        "Share of time in which the integer pipes worked.", "INTEGER_UTIL", detail=True
    )
