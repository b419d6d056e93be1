"""TABLES: the GPU's place in an NVLink fabric, and in its rack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpumon.model.reading import SLOW, Call, Check, Checks, identity, reading

COMPLETED = 3
"""State from which on the rest of what is said about the fabric means something."""
STATES = {1: "has not started", 2: "is in progress"}
"""What is said of the registration in the states before that; 0 is what has no fabric."""
HEALTHY = 1
SUMMARIES = {2: "unhealthy", 3: "of limited capacity"}
"""What the driver calls the fabric at a GPU, where it is not HEALTHY."""
_TRUE, _FALSE = 1, 2
CHECKS = {
    "degraded_bandwidth": Check(0, 2, healthy=_FALSE),
    "route_recovery": Check(2, 2, healthy=_FALSE),
    "route_unhealthy": Check(4, 2, healthy=_FALSE),
    "access_timeout_recovery": Check(6, 2, healthy=_FALSE),
    "incorrect_configuration": Check(8, 4, healthy=1),  # 1 none; 2 and up say what is wrong
    "partition_assigned": Check(12, 2, healthy=_TRUE),
    "fabric_manager_connected": Check(14, 2, healthy=_TRUE),
}
"""The health mask, with widths of our own: those of pynvml 12.570 are wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """What the GPU knows of the NVLink fabric it is in; all None where there is none."""

    PREFIX: ClassVar[str] = "gpumon_fabric_"
    LABELS: ClassVar[tuple[str, ...]] = ("gpu", "uuid")

    # Read again and again: they are known once the fabric is complete, and change when it is partitioned anew.
    cluster_uuid: str | None = identity(
        "Fabric of several nodes.", Call("FabricInfo", attribute="cluster_uuid"), every=SLOW
    )
    clique_id: str | None = identity(
        "GPUs of one clique reach each other.", Call("FabricInfo", attribute="clique_id"), every=SLOW
    )
    state: float | None = reading(
        "0 not supported, 1 not started, 2 in progress, 3 completed.",
        Call("FabricInfo", attribute="state"),
        every=SLOW,
        note="Hopper and later on NVSwitch.",
    )
    status: float | None = reading(
        "NVML's code of the registration: 0 is success.",
        Call("FabricInfo", attribute="status"),
        every=SLOW,
        note="Absent until the state is completed: before that it means nothing.",
    )
    health: dict[str, float] | None = reading(
        "1 for a check of the fabric that is unhealthy, 0 for one that is well.",
        Checks(Call("FabricInfo", attribute="health_mask"), CHECKS),
        every=SLOW,
        label="check",
        note="Absent for checks that GPU or driver do not support; H100 supports none.",
    )
    health_summary: float | None = reading(
        "What the driver sums it up as: 1 healthy, 2 unhealthy, 3 limited capacity.",
        Call("FabricInfo", attribute="health_summary"),
        every=SLOW,
        note="From driver 580 on.",
        detail=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Where in its rack the GPU sits."""

    PREFIX: ClassVar[str] = "gpumon_platform_"
    LABELS: ClassVar[tuple[str, ...]] = ("gpu", "uuid")

    chassis: str | None = identity("Serial number of the chassis.", Call("PlatformInfo", attribute="chassis"))
    slot: str | None = identity("Slot in the chassis.", Call("PlatformInfo", attribute="slot"))
    tray: str | None = identity("Tray in the chassis.", Call("PlatformInfo", attribute="tray"))
