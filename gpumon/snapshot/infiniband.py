"""TABLES: what the links child reads of each InfiniBand or RoCE port, from sysfs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpumon.snapshot.reading import SYSFS, reading


@dataclass(frozen=True, slots=True, kw_only=True)
class InfinibandLink:
    """A port and the network it is on."""

    PREFIX: ClassVar[str] = "gpumon_infiniband_"
    LABELS: ClassVar[tuple[str, ...]] = ("device", "port", "link_layer")

    port_up: float | None = reading("1 for a port that is active.", SYSFS, note="state and phys_state")
    port_speed_bytes_per_second: float | None = reading("Speed of the port, each way.", SYSFS, note="rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class InfinibandPort:
    """What a port counts."""

    PREFIX: ClassVar[str] = "gpumon_infiniband_"
    LABELS: ClassVar[tuple[str, ...]] = ("device", "port")

    receive_bytes_total: float | None = reading("Bytes received.", SYSFS, note="port_rcv_data, in words of four bytes")
    transmit_bytes_total: float | None = reading("Bytes sent.", SYSFS, note="port_xmit_data, in words of four bytes")
    errors_total: dict[str, float] | None = reading(
        "Errors of the port.", SYSFS, label="kind", note="Files of counters/ and hw_counters/ by their names."
    )
    link_downs_total: float | None = reading("Times the link went down.", SYSFS, note="link_downed")
