"""Record of an InfiniBand or RoCE port that is kept over restarts and reboots."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRecord:
    """A port that was present at some time. It is reported as down or missing if it should be up."""

    identity: str
    """Id of the port that does not depend on its device name: GUID or PCI address of its card, and port number."""
    device: str
    """Name of the RDMA device, such as mlx5_0, at the last reading of the port."""
    port: str
    bus_id: str
    """PCI address of its card at the last reading; "" for a device that is not on a PCI bus."""
    guid: str
    """Node GUID of its card; "" if the card has none."""
    link_layer: str
    board: str
    """Board id of the card (its kind, as named by the vendor); "" if not reported."""
    firmware: str
    first_wall: float
    last_wall: float
    """`first_wall` and `last_wall` are the Unix times of the first and of the last reading. If a port that was no
    longer expected returns, `first_wall` restarts.
    """
    first_up: float | None = None
    last_up: float | None = None
    """`first_up` and `last_up` are the Unix times at which the port was first and last up; None if it was never up."""
    speed: float | None = None
    """Highest observed speed per direction in bytes per second. Restarts when the operator accepts that the port is
    slower or down.
    """
    role: str | None = None
    """Role at the last reading, one of ROLES; None if an earlier version of the agent wrote the record."""
    expected: bool | None = None
    """Whether the port should be up. True: it was in use, or it replaced a port that was. None: it was never in use,
    so it is probably not connected. False: it was replaced, or the operator accepted that it is down or gone.
    """
