"""Determines the role of each InfiniBand and RoCE port: whether jobs communicate between nodes over it. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from gpumon.model.infiniband import APART, BOND, DPU, EFA, FABRIC, OTHER, SWITCH, matches
from gpumon.model.snapshot import PortReading

INFINIBAND = "InfiniBand"
RESTRICTED = "its counters may not be read (EINVAL): the fabric manager or another host manages it"
_GIGABIT = 1e9 / 8
_NEAR = {SWITCH: "on the PCIe switch of a GPU", "": "its position on the PCIe bus is not reported"}

Speeds = Mapping[tuple[str, str], float | None]
"""Highest observed speed of each port in bytes per second, by device and port number; None if never observed."""


def with_roles(ports: Sequence[PortReading], speeds: Speeds, fabric: Collection[str]) -> tuple[PortReading, ...]:
    """Return the ports with their roles set. `fabric` has the configured patterns of the fabric's adapters, if any.

    If no port had the role FABRIC and there are no patterns, ports of bonds and DPUs may have it.
    """
    roles = _roles(ports, speeds, fabric)
    if not fabric and FABRIC not in {role for role, _ in roles}:
        roles = _roles(tuple(map(_without_kind, ports)), speeds, fabric)  # the fabric ports are bonds or DPUs
    return tuple(
        port if (port.role, port.role_reason) == (role, reason) else replace(port, role=role, role_reason=reason)
        for port, (role, reason) in zip(ports, roles, strict=True)
    )


def _without_kind(port: PortReading) -> PortReading:
    is_bond_or_dpu = port.placement.kind in {BOND, DPU}
    return replace(port, placement=replace(port.placement, kind="")) if is_bond_or_dpu else port


def _roles(ports: Sequence[PortReading], speeds: Speeds, fabric: Collection[str]) -> list[tuple[str, str]]:
    fabric_speed = _fabric_speed(ports, speeds)
    infiniband = any(
        not port.restricted
        and port.link_layer == INFINIBAND
        and speed
        and not _is_slow_and_apart(port, speed, fabric_speed)
        for port in ports
        for speed in [speeds.get((port.device, port.port))]
    )
    return [
        _role(port, speeds.get((port.device, port.port)), fabric_speed, fabric, infiniband=infiniband) for port in ports
    ]


def _is_slow_and_apart(port: PortReading, speed: float | None, fabric_speed: float | None) -> bool:
    return bool(port.placement.position == APART and speed and fabric_speed and speed < fabric_speed)


def _role(
    port: PortReading, speed: float | None, fabric_speed: float | None, fabric: Collection[str], *, infiniband: bool
) -> tuple[str, str]:
    if port.restricted:
        return OTHER, RESTRICTED
    if fabric:
        named = matches(fabric, port.device, port.bus_id, port.board)
        return (FABRIC, "named by links.fabric") if named else (OTHER, "not named by links.fabric")
    if (port.link_layer == INFINIBAND or port.driver == EFA) and not _is_slow_and_apart(port, speed, fabric_speed):
        return FABRIC, "EFA" if port.driver == EFA else INFINIBAND
    return _ethernet_role(port, speed, fabric_speed, infiniband=infiniband)


def _ethernet_role(
    port: PortReading, speed: float | None, fabric_speed: float | None, *, infiniband: bool
) -> tuple[str, str]:
    """Return the role of an Ethernet port, and the reason for that role.

    `infiniband` is True if an InfiniBand port of the fabric was ever up. An Ethernet port on the NUMA node of a GPU is
    then taken to be for storage. A port on a GPU's PCIe switch may be slower than the fabric, down to half its speed.
    """
    place = port.placement
    if place.position == APART:
        return OTHER, "neither on the PCIe switch nor on the NUMA node of a GPU"
    if place.position != SWITCH and place.kind:
        return OTHER, place.kind
    lowest, highest = (0.5, math.inf) if place.position == SWITCH else (1.0, 1.0)
    if speed and fabric_speed and not lowest <= speed / fabric_speed <= highest:
        return OTHER, f"its speed is {speed / _GIGABIT:.0f} Gb/s, that of the fabric {fabric_speed / _GIGABIT:.0f}"
    if infiniband and place.position != SWITCH:
        return OTHER, "Ethernet beside InfiniBand, and not on the PCIe switch of a GPU"
    return FABRIC, _NEAR.get(place.position, "on the NUMA node of a GPU")


def _fabric_speed(ports: Sequence[PortReading], speeds: Speeds) -> float | None:
    """Return the speed of the fabric in bytes per second; None if it is unknown.

    It is the most common speed of the ports that certainly belong to the fabric: ports below a GPU's PCIe switch, and
    InfiniBand ports that are not APART. Without such ports it is the highest speed of any InfiniBand port, and of any
    other port that is not APART and has no `kind`.
    """
    rated_ports = [
        (port, speed) for port in ports if not port.restricted and (speed := speeds.get((port.device, port.port)))
    ]
    certain = [
        speed
        for port, speed in rated_ports
        if port.placement.position == SWITCH or (port.link_layer == INFINIBAND and port.placement.position != APART)
    ]
    if certain:
        counted = Counter(certain)
        return max(counted, key=lambda speed: (counted[speed], speed))
    near = (
        speed
        for port, speed in rated_ports
        if port.link_layer == INFINIBAND or (port.placement.position != APART and not port.placement.kind)
    )
    return max(near, default=None)
