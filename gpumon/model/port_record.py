"""The record of an InfiniBand or RoCE port, kept over restarts and reboots."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRecord:
    """A port that was present, so that it can be reported as down or missing."""

    identity: str
    """Identity of the port, independent of the name of its device."""
    device: str
    """Its name at the last reading."""
    port: str
    bus_id: str
    """PCI address of its card at the last reading; "" for a device that is not on a PCI bus."""
    guid: str
    """Node GUID of its card; "" where it has none."""
    link_layer: str
    board: str
    """Board id of the card (its kind, as named by the vendor); "" if not reported."""
    firmware: str
    first_wall: float
    last_wall: float
    """Unix time of the first and of the last reading. If a port that was no longer expected came back, first is that
    time.
    """
    first_up: float | None = None
    last_up: float | None = None
    """Unix time at which it was first and last up; None if it never was."""
    speed: float | None = None
    """Highest speed in bytes per second and direction, since the operator last accepted a lower one or that it is
    down.
    """
    expected: bool | None = None
    """Whether it should be up. True: it was in use, or replaced one that was. None: apparently not connected. False:
    it was replaced, or the operator accepted that it is down or gone.
    """
