"""Metric tables of an InfiniBand or RoCE port, read from sysfs by the links child."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gpumon.model.reading import SLOW, Sysfs, reading

STATE_SECONDS = 5.0
"""Interval in seconds at which port states are read. Counters are read in the SLOW tier."""


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
"""Error counters: file names in counters/ and their width in bits. A counter that is full stays full until it is
reset.
"""

HARDWARE_ERRORS = (
    *("out_of_buffer", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err"),
    *("rx_icrc_encapsulated", "roce_slow_restart"),
    *("rx_drops", "retrans_timeout_events", "unresponsive_remote_events"),  # EFA
)
"""Files of hw_counters/ that count lost or retransmitted packets. The device's driver determines which of them
exist.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InfinibandLink:
    """State of one InfiniBand or RoCE port."""

    PREFIX: ClassVar[str] = "gpumon_infiniband_"
    LABELS: ClassVar[tuple[str, ...]] = ("device", "port", "link_layer")

    port_up: float | None = reading(
        "1 if the port is active, from sysfs.", Sysfs(("state", "phys_state")), every=SLOW, note="Read every 5 s."
    )
    port_speed_bytes_per_second: float | None = reading(
        "Speed of the port per direction, from sysfs.",
        Sysfs(("rate",)),
        every=SLOW,
        note="Read every 5 s. Absent while the port is down.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InfinibandPort:
    """Traffic and error counters of one InfiniBand or RoCE port."""

    PREFIX: ClassVar[str] = "gpumon_infiniband_"
    LABELS: ClassVar[tuple[str, ...]] = ("device", "port")

    receive_bytes_total: float | None = reading(
        "Bytes received by the port, from sysfs.",
        Sysfs(("port_rcv_data", "rx_bytes")),
        every=SLOW,
        note="From rx_bytes or tx_bytes on EFA.",
    )
    transmit_bytes_total: float | None = reading(
        "Bytes sent by the port, from sysfs.",
        Sysfs(("port_xmit_data", "tx_bytes")),
        every=SLOW,
        note="From rx_bytes or tx_bytes on EFA.",
    )
    errors_total: dict[str, float] | None = reading(
        "Port errors by kind, from sysfs.",
        Sysfs((*ERRORS, *HARDWARE_ERRORS)),
        every=SLOW,
        label="kind",
        detail=(
            *("port_rcv_remote_physical_errors", "port_rcv_constraint_errors", "port_xmit_constraint_errors"),
            *("VL15_dropped", "out_of_buffer", "packet_seq_err", "rx_icrc_encapsulated"),
        ),
        note="The kinds depend on the device. A counter that is full is absent: reset it with `perfquery -R`.",
    )
    link_downs_total: float | None = reading(
        "Number of times the link went down, from sysfs.",
        Sysfs(("link_downed",)),
        every=SLOW,
        note="Full at 255: see errors_total.",
    )
