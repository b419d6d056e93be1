"""MIG layouts: which sizes fit where, and the names of the instances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpumon.sim.board import Board, MigProfile

_SLICES = 8
WHOLE_GPU = 0xFFFFFFFF
"""Instance id that means "none"."""


class RequestedInstance(NamedTuple):
    """One GPU instance of a layout, by the name of its profile."""

    profile: str
    compute: tuple[int, ...] | None = None
    """Compute slices of its compute instances; None for one instance with all slices."""


class ComputeInstance(NamedTuple):
    """The names and ids of a MIG device."""

    instance: GpuInstance
    number: int
    slices: int

    @property
    def profile(self) -> str:
        """Return `3g.40gb`, or `1c.3g.40gb` for a part of its compute slices."""
        whole = self.slices == self.instance.profile.compute
        return self.instance.profile.name if whole else f"{self.slices}c.{self.instance.profile.name}"

    @property
    def multiprocessors(self) -> int:
        return self.instance.profile.multiprocessors * self.slices // self.instance.profile.compute


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A part of the GPU's memory and engines."""

    number: int
    profile: MigProfile
    compute: tuple[int, ...]

    @property
    def parts(self) -> list[ComputeInstance]:
        return [ComputeInstance(self, n, slices) for n, slices in enumerate(self.compute)]


Layout = tuple[GpuInstance, ...]
"""The instances of a GPU with MIG enabled, by id."""


class LayoutError(ValueError):
    """Instances that do not fit together."""


def place(board: Board, layout: Sequence[RequestedInstance]) -> Layout:
    """Create the instances in order, as the driver does. Raises LayoutError."""
    free = set(range(_SLICES))
    return tuple(sorted((_place(board, requested, free) for requested in layout), key=lambda instance: instance.number))


def _place(board: Board, requested: RequestedInstance, free: set[int]) -> GpuInstance:
    profiles = {profile.name: profile for profile in board.mig_profiles}
    profile = profiles.get(requested.profile)
    if profile is None:
        names = ", ".join(profiles) or "none"
        raise LayoutError(f"no MIG profile {requested.profile!r} on {board.product}; there are {names}")
    compute = (profile.compute,) if requested.compute is None else requested.compute
    if sum(compute) > profile.compute:
        raise LayoutError(f"{requested.profile} has {profile.compute} compute slices, not {sum(compute)}")
    for start in profile.starts:
        taken = set(range(start, start + profile.slices))
        if taken <= free:
            free -= taken
            return GpuInstance(profile.instance_id(start), profile, compute)
    raise LayoutError(f"no room is left for another {requested.profile}: remove an instance")


def devices(layout: Layout | None) -> list[ComputeInstance]:
    """Return all MIG devices of a GPU, in the order of their indexes."""
    return [part for instance in layout or () for part in instance.parts]
