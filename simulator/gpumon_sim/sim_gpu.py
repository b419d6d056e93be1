"""The GPU or MIG device that a simulated NVML function receives in place of a handle."""

from __future__ import annotations

from typing import NamedTuple

from gpumon_sim.board import Board, Profile
from gpumon_sim.exports import Version
from gpumon_sim.mig import ComputeInstance
from gpumon_sim.quantities import State


class Identity(NamedTuple):
    """The identity of a simulated GPU: its position, PCI bus id, uuid and serial number.

    It depends only on the profile and the scenario's seed.
    """

    number: int
    """Position of the GPU in the profile, which is also the minor number of its device node."""
    bus_id: str
    uuid: str
    serial: str


class SimGpu(NamedTuple):
    """A simulated GPU or MIG device, to which the handle of a call resolves, with the GPU's state during the call."""

    profile: Profile
    identity: Identity
    state: State
    driver: Version
    part: ComputeInstance | None = None
    """The MIG device that the handle addresses; None if the handle addresses the whole GPU."""

    @property
    def board(self) -> Board:
        return self.profile.board
