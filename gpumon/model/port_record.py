"""Record of an InfiniBand or RoCE port. It is stored, so that restarts of the agent and reboots do not lose it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRecord:
    """A port that was present at some time. If it is `expected`, the agent reports it while it is down or missing."""

    identity: str
    """CARD/PORT. PORT is the port number. CARD is the GUID of the card, with @ and the PCI address if several ports
    have the same GUID and number; without a GUID the PCI address, or else the device name.
    """
    device: str
    """Name of the RDMA device, such as mlx5_0, at the last reading of the port."""
    port: str
    bus_id: str
    """PCI address of the port's card at the last reading; "" for a device that is not on a PCI bus."""
    guid: str
    """Node GUID of the port's card; "" if the card has none."""
    link_layer: str
    board: str
    """Board id of the card, by which the vendor names the card's model; "" if not reported."""
    firmware: str
    first_wall: float
    last_wall: float
    """`first_wall` and `last_wall` are the Unix times of the first and of the last reading. `first_wall` is set again
    if the port returns after it was no longer expected.
    """
    first_up: float | None = None
    last_up: float | None = None
    """`first_up` and `last_up` are the Unix times at which the port was first and last up; None if it was never up."""
    speed: float | None = None
    """Highest observed speed per direction in bytes per second, or a lower speed that the operator accepted. Earlier
    speeds are dropped if the port comes up after it was no longer expected.
    """
    role: str | None = None
    """Role at the last reading, one of ROLES; None if an earlier version of the agent wrote the record."""
    expected: bool | None = None
    """Whether the port should be up. True: it was in use, or replaced a port that was in use. None: it was never in
    use, so it is probably not connected. False: it was replaced or excluded, or accepted as down or gone.
    """
