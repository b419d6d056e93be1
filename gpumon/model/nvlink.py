"""Metric tables of NVLinks, their peers, chip-to-chip links of Grace hosts, and the NVLink fabric.

The fabric reports the membership of a GPU and, on a rack, the location of the GPU in it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from gpumon.model.reading import (
    LINKS,
    RARE,
    SLOW,
    Call,
    Checks,
    Each,
    Field,
    LinkCall,
    LinkField,
    RowCheck,
    identity,
    reading,
)

ACTIVE, ASLEEP, WITHOUT_TRAFFIC = 1, 2, 3
"""Link states that count as up. ASLEEP saves power. WITHOUT_TRAFFIC (driver 615): trained, but traffic is disabled."""

PEERS = {0: "gpu", 1: "npu", 2: "switch"}

_UP_TO_HOPPER = {
    "replay": "NVLINK_ERROR_DL_REPLAY",
    "recovery": "NVLINK_ERROR_DL_RECOVERY",
    "crc": "NVLINK_ERROR_DL_CRC",
}
_FROM_BLACKWELL = {
    "malformed_packet": "NVLINK_COUNT_MALFORMED_PACKET_ERRORS",
    "buffer_overrun": "NVLINK_COUNT_BUFFER_OVERRUN_ERRORS",
    "receive": "NVLINK_COUNT_RCV_ERRORS",
    "receive_remote": "NVLINK_COUNT_RCV_REMOTE_ERRORS",
    "receive_general": "NVLINK_COUNT_RCV_GENERAL_ERRORS",
    "local_link_integrity": "NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS",
    "transmit_discard": "NVLINK_COUNT_XMIT_DISCARDS",
    "effective": "NVLINK_COUNT_EFFECTIVE_ERRORS",
    "symbol": "NVLINK_COUNT_SYMBOL_ERRORS",
}


def _errors_by_kind(fields: dict[str, str], *, bits: int = 64, packed: bool = False) -> Each:
    return Each({key: LinkField(name, bits=bits, packed=packed) for key, name in fields.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvlink:
    """State and error counters of one NVLink."""

    PREFIX: ClassVar[str] = "gpumon_nvlink_"
    LABELS: ClassVar[tuple[str, ...]] = ("gpu", "uuid", "link")
    COUNT: ClassVar[Field] = Field("NVLINK_LINK_COUNT")
    """NVML field with the GPU's number of NVLinks. pynvml's constant for the maximum differs between its versions."""

    up: float | None = reading(
        "1 if the NVLink is active or asleep.",
        LinkField("NVLINK_GET_STATE", states=(ACTIVE, ASLEEP, WITHOUT_TRAFFIC)),
        every=SLOW,
        page=LINKS,
        note="Also 1 if its traffic is disabled (driver 615). Absent if the link is not expected to be up: with MIG "
        "enabled, on a board without a bridge, on a guest with a part of the fabric.",
    )
    errors_total: dict[str, float] | None = reading(
        "NVLink errors by kind.",
        _errors_by_kind(_UP_TO_HOPPER | _FROM_BLACKWELL),
        every=SLOW,
        page=LINKS,
        label="kind",
        note="Up to Hopper: replay, recovery, crc. Blackwell and later: the others.",
    )
    recoveries_total: dict[str, float] | None = reading(
        "NVLink recoveries (retrainings) by result.",
        _errors_by_kind(
            {
                "successful": "NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS",
                "failed": "NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS",
            }
        ),
        every=SLOW,
        page=LINKS,
        label="result",
        note="Blackwell and later. After a failed recovery the link is down.",
    )
    bit_error_ratio: dict[str, float] | None = reading(
        "Ratio of received bits that were wrong.",
        _errors_by_kind(
            {"effective": "NVLINK_COUNT_EFFECTIVE_BER", "symbol": "NVLINK_COUNT_SYMBOL_BER"}, bits=0, packed=True
        ),
        every=RARE,
        page=LINKS,
        label="kind",
        note="Blackwell and later.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkPeer:
    """The device at the other end of an NVLink."""

    PREFIX: ClassVar[str] = "gpumon_nvlink_peer_"
    LABELS: ClassVar[tuple[str, ...]] = Nvlink.LABELS
    COUNT: ClassVar[Field] = Nvlink.COUNT

    peer_type: str | None = identity(
        "Type of the peer: gpu, npu or switch.", LinkCall("NvLinkRemoteDeviceType", words=PEERS), page=LINKS
    )
    peer: str | None = identity(
        "PCI address of the peer.", LinkCall("NvLinkRemotePciInfo", attribute="busId"), page=LINKS
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class C2cLink:
    """State of one chip-to-chip link between a Grace CPU and its GPU."""

    PREFIX: ClassVar[str] = "gpumon_c2c_link_"
    LABELS: ClassVar[tuple[str, ...]] = ("gpu", "uuid", "link")
    COUNT: ClassVar[Field] = Field("C2C_LINK_COUNT")

    up: float | None = reading(
        "1 if the chip-to-chip link is up.",
        LinkField("C2C_LINK_GET_STATUS"),
        every=SLOW,
        page=LINKS,
        note="Grace hosts.",
    )


class ExpectedLinks(enum.Enum):
    """Rule that decides which NVLinks of a GPU should be up."""

    ALL = "all"
    ALL_OR_NONE = "all, once one of them has been up"
    BEEN_UP = "those that have been up"
    UNKNOWN = "unknown"


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
"""Checks in the fabric health mask: bit position, width, healthy value. The constants of pynvml 12.570 are wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Registration of one GPU with its NVLink fabric. Without a fabric `state` is 0, or all attributes are None."""

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
