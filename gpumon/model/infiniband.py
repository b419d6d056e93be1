"""InfiniBand and RoCE ports: their metric tables, read from sysfs by the host child, and patterns of adapters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

from gpumon.model.bus_id import parse_bus_id
from gpumon.model.reading import AGENT, LINKS, SLOW, STATE, Sysfs, identity, reading

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
"""Width in bits of each error counter, by its file name in counters/. At its maximum a counter stays until a reset."""

HARDWARE_ERRORS: Mapping[str, int] = {
    **dict.fromkeys(("out_of_buffer", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err"), 32),
    **dict.fromkeys(("rnr_nak_retry_err", "roce_slow_restart", "req_transport_retries_exceeded"), 32),
    "rx_icrc_encapsulated": 64,
    **dict.fromkeys(("rx_drops", "retrans_timeout_events", "unresponsive_remote_events"), 64),  # EFA
}
"""Width in bits of each counter of lost or retransmitted packets, by its file name in hw_counters/. The device's driver
determines which of these files exist. A 32-bit counter wraps to 0.
"""
DEVICE_ERRORS: Mapping[str, int] = {"no_completion_cmds": 64, "cmds_err": 64}
"""Width in bits of each counter of failed admin commands of an EFA device, by its file name in hw_counters/."""


EFA = "efa"
"""Kernel driver of the AWS Elastic Fabric Adapter. The driver reports every port as active and has no port counters."""
FABRIC, OTHER = ROLES = ("fabric", "other")
"""Roles of a port. Jobs communicate between nodes over FABRIC ports; OTHER ports are for management or storage."""
BOND, DPU = ("its network interface belongs to a bond", "it is a DPU")
"""Two of the values of Placement.kind."""
SWITCH, NUMA, APART = ("switch", "numa", "apart")
"""Positions of an adapter relative to a GPU: below the same PCIe switch, only on the same NUMA node, or neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """PCIe position of a network adapter relative to the GPUs, and signs that it does not belong to the fabric."""

    position: str = ""
    """SWITCH, NUMA or APART; "" if it is not reported, as in many virtual machines."""
    gpus: tuple[str, ...] = ()
    """PCI addresses of the GPUs below the same PCIe switch, in NVML's form."""
    kind: str = ""
    """Why an Ethernet port of the adapter is probably not a fabric port; "" if nothing indicates that. Reasons: the
    adapter is a DPU, or its network interface belongs to a bond or to a virtual machine's synthetic interface. The
    reason is ignored if the adapter is below the same PCIe switch as a GPU.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class InfinibandPortInfo:
    """Role of one InfiniBand or RoCE port; also the port's link layer, and the GPUs below the same PCIe switch."""

    PREFIX: ClassVar[str] = "gpumon_infiniband_port_"
    LABELS: ClassVar[tuple[str, ...]] = ("device", "port")

    role: str | None = identity("Role: `fabric` if jobs communicate between nodes over it, else `other`.", AGENT)
    link_layer: str | None = identity("Link layer: InfiniBand, or Ethernet for RoCE.", Sysfs(("link_layer",)))
    gpu: str | None = identity("Index of the GPUs below the same PCIe switch, joined by commas.", AGENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class InfinibandLink:
    """State of one InfiniBand or RoCE port; also the speed of the port."""

    PREFIX: ClassVar[str] = "gpumon_infiniband_"
    LABELS: ClassVar[tuple[str, ...]] = ("device", "port", "link_layer")

    port_up: float | None = reading("1 if the port is active, from sysfs.", Sysfs(("state", "phys_state")), every=STATE)
    port_speed_bytes_per_second: float | None = reading(
        "Speed of the port per direction, from sysfs.",
        Sysfs(("rate",)),
        every=STATE,
        note="On EFA from the network interface, if there is one. Absent while the port is down.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InfinibandPort:
    """Traffic and error counters of one InfiniBand or RoCE port."""

    PREFIX: ClassVar[str] = "gpumon_infiniband_"
    LABELS: ClassVar[tuple[str, ...]] = ("device", "port")

    receive_bytes_total: float | None = reading(
        "Bytes received by the port, from sysfs.",
        Sysfs(("port_rcv_data", "rx_bytes"), {"port_rcv_data": DATA_BITS, "rx_bytes": 64}),
        every=SLOW,
        note="From rx_bytes on EFA.",
    )
    transmit_bytes_total: float | None = reading(
        "Bytes sent by the port, from sysfs.",
        Sysfs(("port_xmit_data", "tx_bytes"), {"port_xmit_data": DATA_BITS, "tx_bytes": 64}),
        every=SLOW,
        note="From tx_bytes on EFA.",
    )
    errors_total: dict[str, float] | None = reading(
        "Port errors by kind, from sysfs.",
        Sysfs(
            (*ERRORS, *HARDWARE_ERRORS, *DEVICE_ERRORS),
            {**ERRORS, **HARDWARE_ERRORS, **DEVICE_ERRORS},
            wraps=HARDWARE_ERRORS.keys(),
        ),
        every=SLOW,
        label="kind",
        page=LINKS,
        detail=(
            *("port_rcv_remote_physical_errors", "port_rcv_constraint_errors", "port_xmit_constraint_errors"),
            *("VL15_dropped", "out_of_buffer", "packet_seq_err", "rx_icrc_encapsulated"),
        ),
        note="The kinds depend on the device. A counter that is full is absent: reset it with `perfquery -R`.",
    )
    link_downs_total: float | None = reading(
        "Number of times the link went down, from sysfs.",
        Sysfs(
            ("link_downed", "carrier_down_count", "carrier_changes"),
            {"link_downed": DOWNED_BITS, "carrier_down_count": 32, "carrier_changes": 32},
        ),
        every=SLOW,
        note="Full at 255: see errors_total. On Ethernet the larger number of the port and its network interface.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PortPatterns:
    """Patterns of network adapters from the section `links` of the configuration."""

    exclude: tuple[str, ...] = ()
    """Patterns of adapters that are not monitored."""
    fabric: tuple[str, ...] = ()
    """Patterns of the fabric's adapters. If empty, an adapter's link layer, PCIe position and speed decide."""


def matches(patterns: Collection[str], device: str, bus_id: str, board: str) -> bool:
    """Return True if a pattern matches the device name, the PCI address `bus_id` or the board id, ignoring case.

    A PCI address without wildcards may have any form (see `parse_bus_id`). With wildcards, its domain has 8 digits, or
    as many as in the kernel's form.
    """
    addresses = (bus_id, bus_id[:4].lstrip("0") + bus_id[4:])  # 00010000:01:00.0 is 10000:01:00.0 in the kernel's form
    names = [name.lower() for name in (device, board, *addresses) if name]
    return any(
        parse_bus_id(pattern) == bus_id or any(fnmatchcase(name, pattern.lower()) for name in names)
        for pattern in patterns
    )
