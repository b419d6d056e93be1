"""TABLES: what the links child reads of each InfiniBand or RoCE port, from sysfs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gpumon.model.reading import SLOW, Sysfs, reading

LOOK_SECONDS = 5.0
"""How often states are read; what is counted, every slow tick."""


DATA_BITS, DOWNED_BITS = 32, 8
ERRORS: Mapping[str, int] = {
    "symbol_error": 16,
    "link_error_recovery": 8,
    "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16,
    "port_rcv_constraint_errors": 8,
    "port_xmit_constraint_errors": 8,
    "port_xmit_discards": 16,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
    "VL15_dropped": 16,
}
"""Files of counters/, and how many bits the architecture gives each: one that is full stays so until it is reset."""

HARDWARE_ERRORS = (
    *("out_of_buffer", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err"),
    *("rx_icrc_encapsulated", "roce_slow_restart"),
    *("rx_drops", "retrans_timeout_events", "unresponsive_remote_events"),  # EFA
)
"""Files of hw_counters/ that mean loss or repetition; which of them there are, the device's driver decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InfinibandLink:
    """A port and the network it is on."""

    PREFIX: ClassVar[str] = "gpumon_infiniband_"
    LABELS: ClassVar[tuple[str, ...]] = ("device", "port", "link_layer")

    port_up: float | None = reading(
        "1 for a port that is active.", Sysfs(("state", "phys_state")), every=SLOW, note="Read every 5 s."
    )
    port_speed_bytes_per_second: float | None = reading(
        "Speed of the port, each way.",
        Sysfs(("rate",)),
        every=SLOW,
        note="Read every 5 s. Absent for a port that is down.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InfinibandPort:
    """What a port counts."""

    PREFIX: ClassVar[str] = "gpumon_infiniband_"
    LABELS: ClassVar[tuple[str, ...]] = ("device", "port")

    receive_bytes_total: float | None = reading(
        "Bytes received.", Sysfs(("port_rcv_data", "rx_bytes")), every=SLOW, note="The second on EFA."
    )
    transmit_bytes_total: float | None = reading(
        "Bytes sent.", Sysfs(("port_xmit_data", "tx_bytes")), every=SLOW, note="The second on EFA."
    )
    errors_total: dict[str, float] | None = reading(
        "Errors of the port.",
        Sysfs((*ERRORS, *HARDWARE_ERRORS)),
        every=SLOW,
        label="kind",
        detail=(
            *("port_rcv_remote_physical_errors", "port_rcv_constraint_errors", "port_xmit_constraint_errors"),
            *("VL15_dropped", "out_of_buffer", "packet_seq_err", "rx_icrc_encapsulated"),
        ),
        note="Which of them there are, the device decides. One that is full counts no more and is absent: "
        "reset it with `perfquery -R`.",
    )
    link_downs_total: float | None = reading(
        "Times the link went down.", Sysfs(("link_downed",)), every=SLOW, note="Full at 255: see above."
    )
