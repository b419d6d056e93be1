"""What a getter sees: one GPU at one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumon.sim.profiles import Profile
from gpumon.sim.state import State

if TYPE_CHECKING:
    from gpumon.sim.node import Node


class Identity(NamedTuple):
    """What stays the same for the life of a GPU."""

    number: int
    """Position in the profile, and minor number of its device node."""
    bus_id: str
    uuid: str
    serial: str


class Device(NamedTuple):
    """A GPU that answers."""

    node: Node
    profile: Profile
    identity: Identity
    state: State
