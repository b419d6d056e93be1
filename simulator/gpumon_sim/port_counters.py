"""TABLE: the counters of simulated InfiniBand ports, and the values of the scenario's keys `ports` and `services`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpumon_sim import shapes
from gpumon_sim.board import Profile
from gpumon_sim.nic_kinds import NIC_KINDS

STATES = {
    "active": ("4: ACTIVE", "5: LinkUp"),
    "init": ("2: INIT", "5: LinkUp"),
    "down": ("1: DOWN", "2: Polling"),
    "disabled": ("1: DOWN", "3: Disabled"),
}
"""Contents of a port's sysfs files `state` and `phys_state`, by the state that the scenario sets."""

COUNTERS = (
    *("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors"),
    *("port_rcv_constraint_errors", "port_xmit_constraint_errors", "port_xmit_discards", "port_xmit_wait"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors", "VL15_dropped"),
)
HARDWARE_COUNTERS = (
    *("out_of_buffer", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err"),
    *("rx_icrc_encapsulated", "roce_slow_restart", "req_cqe_error", "resp_cqe_error"),
)
"""Names of the files in the folder hw_counters/ of a ConnectX-7 port, all 0 unless the scenario sets them."""
EFA_COUNTERS = ("rx_bytes", "tx_bytes", "rx_drops")
"""Names of the files in the folder hw_counters/ of an EFA port. EFA ports have no folder counters/."""
EFA_DEVICE_COUNTERS = ("no_completion_cmds", "cmds_err", "completed_cmds", "submitted_cmds")
"""Names of the files in the folder hw_counters/ of an EFA device. They count the device's admin commands."""
TRAFFIC = ("port_rcv_data", "port_xmit_data")
STOPS_AT = {
    **dict.fromkeys(("symbol_error", "port_rcv_errors", "port_rcv_remote_physical_errors"), 2**16 - 1),
    **dict.fromkeys(("port_xmit_discards", "VL15_dropped"), 2**16 - 1),
    **dict.fromkeys(("link_error_recovery", "link_downed"), 2**8 - 1),
    **dict.fromkeys(("port_rcv_constraint_errors", "port_xmit_constraint_errors"), 2**8 - 1),
    **dict.fromkeys(("local_link_integrity_errors", "excessive_buffer_overrun_errors"), 2**4 - 1),
    "port_xmit_wait": 2**32 - 1,
}
"""Maximum at which a port counter stops (PortCounters of the InfiniBand specification), by name. The counters in
TRAFFIC have 64 bits and are not here.
"""
WRAPS_AT = dict.fromkeys(set(HARDWARE_COUNTERS) - {"rx_icrc_encapsulated"}, 2**32)
"""Number at which a hardware counter wraps to 0, by name. The counters have 32 bits, as in Linux
(mlx5_ifc_query_q_counter_out_bits).
"""
FILES = {
    **{name: f"counters/{name}" for name in (*TRAFFIC, *COUNTERS)},
    **{name: f"hw_counters/{name}" for name in HARDWARE_COUNTERS},
    **{name: name for name in ("state", "phys_state", "rate", "link_layer")},
}
"""Path of a file below a port's folder in sysfs, by name of the counter or property."""

RUNNING, STOPPED, NOT_INSTALLED, RESTARTING = "running", "stopped", "not_installed", "restarting"
CONTAINER = "container"
"""State of a service that runs in a container while its systemd unit is stopped, as with the GPU operator. Source:
NVIDIA/NVSentinel issue 883.
"""
RESTART_SECONDS = 30
"""Lifetime in seconds of each process of a service in the state `restarting`."""
SERVICES = {"fabric_manager": "nvidia-fabricmanager.service", "imex": "nvidia-imex.service"}

_PORT = shapes.fields(
    {
        "state": shapes.one_of(*STATES),
        "rate": shapes.number(1, 1e4, "Gb/s"),
        "counters": shapes.by_key(
            shapes.one_of(*TRAFFIC, *COUNTERS, *HARDWARE_COUNTERS, *EFA_COUNTERS, *EFA_DEVICE_COUNTERS),
            shapes.growing_number(0, 2**64),
        ),
        "unreadable": shapes.listing(shapes.one_of(*FILES)),
        "carrier_downs": shapes.growing_number(0, 2**32),
        "hang": shapes.flag,
        "absent": shapes.flag,
        "replaced": shapes.flag,
    }
)
NICS_SHAPE = shapes.listing(shapes.one_of(*NIC_KINDS))
PORTS_SHAPE = shapes.by_key(lambda value, _: str(value), _PORT)
_SERVICE = shapes.one_of(RUNNING, STOPPED, NOT_INSTALLED, RESTARTING, CONTAINER)
SERVICES_SHAPE = shapes.fields(dict.fromkeys(SERVICES, _SERVICE))


def devices(profile: Profile) -> list[str]:
    """Return the names of a profile's InfiniBand devices: mlx5_0 and so on. Each device has one port."""
    return [f"mlx5_{number}" for number in range(profile.ports.count if profile.ports else 0)]


def address(number: int) -> str:
    """Return the PCI address of an InfiniBand device, in the kernel's format. No GPU is in the same PCI domain."""
    return f"0001:{0x10 + number:02x}:00.0"


def guid(number: int, *, replaced: bool = False) -> str:
    """Return the node GUID of an InfiniBand device. A replaced device has another GUID."""
    return f"5c25:7303:{0x00F1 if replaced else 0x00F0:04x}:{number:04x}"


def narrow(name: str, value: int) -> int:
    """Return what a counter shows for the count `value`: it may stop (STOPS_AT) or wrap to 0 (WRAPS_AT)."""
    return min(value, STOPS_AT.get(name, value)) % WRAPS_AT.get(name, 2**64)


def check(ports: Mapping[str, Any], nics: Iterable[str], profile: Profile) -> None:
    """Raise ShapeError if the scenario's `ports` name a device that is neither in `profile` nor added by its `nics`."""
    names = [*devices(profile), *(NIC_KINDS[kind].device for kind in nics)]
    for name in ports:
        if name not in {"*", *names}:
            there = f"there are {names[0]} to {names[-1]}, and '*' for all" if names else "this profile has none"
            raise shapes.ShapeError(("ports", name), f"no port {name!r}; {there}")
