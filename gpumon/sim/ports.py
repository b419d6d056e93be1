"""TABLE: what the simulated ports count and what a scenario can do to them and to the services."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpumon.sim import shapes
from gpumon.sim.board import Profile

STATES = {
    "active": ("4: ACTIVE", "5: LinkUp"),
    "init": ("2: INIT", "5: LinkUp"),
    "down": ("1: DOWN", "2: Polling"),
    "disabled": ("1: DOWN", "3: Disabled"),
}
"""As the files `state` and `phys_state` say it."""

COUNTERS = (
    *("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors"),
    *("port_rcv_constraint_errors", "port_xmit_constraint_errors", "port_xmit_discards", "port_xmit_wait"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors", "VL15_dropped"),
)
HARDWARE_COUNTERS = (
    *("out_of_buffer", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err"),
    *("rx_icrc_encapsulated", "roce_slow_restart", "req_cqe_error", "resp_cqe_error"),
)
"""Of a ConnectX-7, those that stay at 0 while nothing is wrong."""
TRAFFIC = ("port_rcv_data", "port_xmit_data")
FILES = {
    **{name: f"counters/{name}" for name in (*TRAFFIC, *COUNTERS)},
    **{name: f"hw_counters/{name}" for name in HARDWARE_COUNTERS},
    **{name: name for name in ("state", "phys_state", "rate", "link_layer")},
}
"""Below a port's folder, by name."""

RUNNING, STOPPED, NOT_INSTALLED, RESTARTING = "running", "stopped", "not_installed", "restarting"
RESTART_SECONDS = 30
"""How long a service that restarts lives each time."""
SERVICES = {"fabric_manager": "nvidia-fabricmanager.service", "imex": "nvidia-imex.service"}

_PORT = shapes.fields(
    {
        "state": shapes.one_of(*STATES),
        "rate": shapes.number(1, 1e4, "Gb/s"),
        "counters": shapes.by_key(shapes.one_of(*TRAFFIC, *COUNTERS, *HARDWARE_COUNTERS), shapes.growing(0, 2**64)),
        "unreadable": shapes.listing(shapes.one_of(*FILES)),
        "hang": shapes.flag,
        "absent": shapes.flag,
        "replaced": shapes.flag,
    }
)
PORTS_SHAPE = shapes.by_key(lambda value, _: str(value), _PORT)
SERVICES_SHAPE = shapes.fields(dict.fromkeys(SERVICES, shapes.one_of(RUNNING, STOPPED, NOT_INSTALLED, RESTARTING)))


def devices(profile: Profile) -> list[str]:
    """Names of the devices; each has one port."""
    return [f"mlx5_{number}" for number in range(profile.ports.count if profile.ports else 0)]


def address(number: int) -> str:
    """PCI address of a device, as the kernel writes it: in a domain of its own, so that no GPU has it."""
    return f"0001:{0x10 + number:02x}:00.0"


def guid(number: int, *, replaced: bool = False) -> str:
    """Node GUID of a device; another card has another one."""
    return f"5c25:7303:{0x00F1 if replaced else 0x00F0:04x}:{number:04x}"


def check(wanted: Mapping[str, Any], profile: Profile) -> None:
    """Raises ShapeError for a port that the profile does not have."""
    known = devices(profile)
    for name in wanted:
        if name not in {"*", *known}:
            there = f"there are {known[0]} to {known[-1]}, and '*' for all" if known else "this profile has none"
            raise shapes.ShapeError(("ports", name), f"no port {name!r}; {there}")
