"""Metric tables: the membership of a GPU in its NVLink fabric, and its location in the rack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpumon.model.reading import SLOW, Call, Checks, RowCheck, identity, reading

COMPLETED = 3
"""Value of `Fabric.state` when registration is completed. With any other value, the other rows of Fabric are invalid.
"""
STATES = {1: "has not started", 2: "is in progress"}
"""Text for each value of `Fabric.state` below COMPLETED, except 0, which means that the GPU has no fabric."""
HEALTHY, LIMITED = 1, 3
SUMMARIES = {2: "unhealthy", LIMITED: "of limited capacity"}
"""Text for each value of `health_summary` other than HEALTHY."""
_TRUE, _FALSE = 1, 2
CHECKS = {
    "degraded_bandwidth": RowCheck(0, 2, healthy=_FALSE),
    "route_recovery": RowCheck(2, 2, healthy=_FALSE),
    "route_unhealthy": RowCheck(4, 2, healthy=_FALSE),
    "access_timeout_recovery": RowCheck(6, 2, healthy=_FALSE),
    "incorrect_configuration": RowCheck(8, 4, healthy=1),  # 1 is none, 2 and above are errors
    "partition_assigned": RowCheck(12, 2, healthy=_TRUE),
    "fabric_manager_connected": RowCheck(14, 2, healthy=_TRUE),
}
"""Checks in the fabric health mask by name: bit position, width in bits, healthy value. The constants of pynvml 12.570
have wrong widths.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Registration of one GPU with its NVLink fabric.

    For a GPU without a fabric, `state` is 0 or all attributes are None.
    """

    PREFIX: ClassVar[str] = "gpumon_fabric_"
    LABELS: ClassVar[tuple[str, ...]] = ("gpu", "uuid")

    # Read in the SLOW tier: they are valid when registration is completed, and a repartitioning changes them.
    cluster_uuid: str | None = identity(
        "UUID of the NVLink fabric (of several nodes).", Call("FabricInfo", attribute="cluster_uuid"), every=SLOW
    )
    clique_id: str | None = identity(
        "Id of the clique: GPUs in the same clique reach each other.",
        Call("FabricInfo", attribute="clique_id"),
        every=SLOW,
    )
    state: float | None = reading(
        "State of the fabric registration: 0 not supported, 1 not started, 2 in progress, 3 completed.",
        Call("FabricInfo", attribute="state"),
        every=SLOW,
        note="Hopper and later on NVSwitch.",
    )
    status: float | None = reading(
        "NVML status code of the fabric registration: 0 is success.",
        Call("FabricInfo", attribute="status"),
        every=SLOW,
        note="Absent until the registration is completed.",
    )
    health: dict[str, float] | None = reading(
        "1 for a fabric health check that is unhealthy, 0 for one that is healthy.",
        Checks(Call("FabricInfo", attribute="health_mask"), CHECKS),
        every=SLOW,
        label="check",
        note="Absent for checks that the GPU or the driver does not support; H100 supports none.",
    )
    health_summary: float | None = reading(
        "Fabric health summary of the driver: 1 healthy, 2 unhealthy, 3 limited capacity.",
        Call("FabricInfo", attribute="health_summary"),
        every=SLOW,
        note="Driver 580 and later.",
        detail=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Location of a GPU in its rack, as reported by the platform."""

    PREFIX: ClassVar[str] = "gpumon_platform_"
    LABELS: ClassVar[tuple[str, ...]] = ("gpu", "uuid")

    chassis: str | None = identity("Serial number of the chassis.", Call("PlatformInfo", attribute="chassis"))
    slot: str | None = identity("Slot in the chassis.", Call("PlatformInfo", attribute="slot"))
    tray: str | None = identity("Tray in the chassis.", Call("PlatformInfo", attribute="tray"))
