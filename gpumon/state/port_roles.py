"""Determines the role of each InfiniBand and RoCE port: whether jobs communicate between nodes over it. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from gpumon.model.infiniband import APART, BOND, DPU, EFA, FABRIC, OTHER, SWITCH, matches
from gpumon.model.snapshot import PortReading

INFINIBAND = "InfiniBand"
RESTRICTED = "its counters may not be read (EINVAL): the fabric manager or another host manages it"
_GIGABIT = 1e9 / 8
_NEAR = {SWITCH: "on the PCIe switch of a GPU", "": "its position on the PCIe bus is not reported"}

RatedPort = tuple[PortReading, float | None]
"""A port, and its highest observed speed in bytes per second; None if it was never observed."""


def with_roles(rated: Sequence[RatedPort], fabric: Collection[str]) -> tuple[PortReading, ...]:
    """Return the ports with their roles set. `fabric` has the configured patterns of the fabric's adapters, if any.

    If no port had the role FABRIC and there are no patterns, ports of bonds and DPUs may have it.
    """
    roles = _roles(rated, fabric)
    if not fabric and FABRIC not in {role for role, _ in roles}:  # the fabric ports are bonds or DPUs
        roles = _roles(
            [
                (replace(port, placement=replace(port.placement, kind="")), speed)
                if port.placement.kind in {BOND, DPU}
                else (port, speed)
                for port, speed in rated
            ],
            fabric,
        )
    return tuple(
        port if (port.role, port.role_reason) == (role, reason) else replace(port, role=role, role_reason=reason)
        for (port, _), (role, reason) in zip(rated, roles, strict=True)
    )


def _roles(rated: Sequence[RatedPort], fabric: Collection[str]) -> list[tuple[str, str]]:
    fabric_speed = _fabric_speed(rated)
    infiniband = any(
        speed
        and port.link_layer == INFINIBAND
        and not port.restricted
        and not _is_slow_and_apart(port, speed, fabric_speed)
        for port, speed in rated
    )
    return [_role(port, speed, fabric_speed, fabric, infiniband=infiniband) for port, speed in rated]


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


def _fabric_speed(rated: Sequence[RatedPort]) -> float | None:
    """Return the speed of the fabric in bytes per second; None if it is unknown.

    It is the most common speed of the ports that certainly belong to the fabric: ports below a GPU's PCIe switch, and
    InfiniBand ports that are not APART. Without such ports it is the highest speed of any InfiniBand port, and of any
    other port that is not APART and has no `kind`.
    """
    certain, near = [], []
    for port, speed in rated:
        if speed and not port.restricted:
            place, infiniband = port.placement, port.link_layer == INFINIBAND
            if place.position == SWITCH or (infiniband and place.position != APART):
                certain.append(speed)
            if infiniband or (place.position != APART and not place.kind):
                near.append(speed)
    if certain:
        counted = Counter(certain)
        return max(counted, key=lambda speed: (counted[speed], speed))
    return max(near, default=None)
