"""The GPU or MIG device that the simulated NVML functions receive."""

from __future__ import annotations

from typing import NamedTuple

from gpumon.sim.board import Board, Profile
from gpumon.sim.exports import Version
from gpumon.sim.mig import ComputeInstance
from gpumon.sim.quantities import State


class Identity(NamedTuple):
    """The identity of a simulated GPU: its position, PCI bus id, uuid and serial number.

    It depends on profile and seed.
    """

    number: int
    """Position in the profile, and minor number of the device node."""
    bus_id: str
    uuid: str
    serial: str


class SimGpu(NamedTuple):
    """A simulated GPU or MIG device with its state at one moment, resolved from the handle of a call."""

    profile: Profile
    identity: Identity
    state: State
    driver: Version
    part: ComputeInstance | None = None
    """The MIG device of the handle; None for the whole GPU."""

    @property
    def board(self) -> Board:
        return self.profile.board
