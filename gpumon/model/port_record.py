"""The record of an InfiniBand or RoCE port, kept over restarts and reboots."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRecord:
    """A port that was here, so that it is missing when it is down or gone."""

    identity: str
    """Which port it is, independent of the name of its device."""
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
    """Seconds since the epoch at which it was seen first, and last; of one that was expected no more, and came back,
    when it did so."""
    first_up: float | None = None
    last_up: float | None = None
    """The same of being up; None for one that never was."""
    speed: float | None = None
    """Bytes per second, each way: the most with which it was up, since a person accepted less or that it is down."""
    expected: bool | None = None
    """Whether it should be up: it has been in use, or took the place of one that was; None: it is not wired, as far
    as is known; False: it was replaced, or a person has accepted that it is down or gone."""
