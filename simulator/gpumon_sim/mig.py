"""MIG layouts: computes which GPU instances the driver creates on a GPU, with their ids and MIG profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpumon_sim.board import Board, MigProfile

_SLICES = 8
WHOLE_GPU = 0xFFFFFFFF
"""NVML's instance id for "no instance"."""


class RequestedInstance(NamedTuple):
    """A GPU instance to create, from a node's profile or a scenario: its MIG profile and its compute instances."""

    profile: str
    compute: tuple[int, ...] | None = None
    """Number of compute slices of each compute instance; None for a single compute instance with all slices."""


class ComputeInstance(NamedTuple):
    """A compute instance of a GPU instance. NVML presents every compute instance as a MIG device."""

    instance: GpuInstance
    number: int
    slices: int

    @property
    def profile(self) -> str:
        """Return the profile's name: `3g.40gb`, or `1c.3g.40gb` for a compute instance with one of the three slices."""
        whole = self.slices == self.instance.profile.compute
        return self.instance.profile.name if whole else f"{self.slices}c.{self.instance.profile.name}"

    @property
    def multiprocessors(self) -> int:
        return self.instance.profile.multiprocessors * self.slices // self.instance.profile.compute


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance: the part of a GPU's memory and engines that its MIG profile defines.

    `compute` has the number of compute slices of each of its compute instances.
    """

    number: int
    profile: MigProfile
    compute: tuple[int, ...]

    @property
    def parts(self) -> list[ComputeInstance]:
        return [ComputeInstance(self, n, slices) for n, slices in enumerate(self.compute)]


Layout = tuple[GpuInstance, ...]
"""The GPU instances of a GPU with MIG enabled, in the order of their ids."""


class LayoutError(ValueError):
    """Raised if instances do not fit on a GPU together, have too many compute slices, or an unknown MIG profile."""


def place(board: Board, layout: Sequence[RequestedInstance]) -> Layout:
    """Return, sorted by id, the GPU instances that the driver creates if those in `layout` are requested in this order.

    Raise LayoutError if they do not fit on the GPU, have too many compute slices, or have an unknown MIG profile.
    """
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
    """Return all MIG devices of a GPU, in the order of their indexes. `layout` is None if MIG is disabled."""
    return [part for instance in layout or () for part in instance.parts]
