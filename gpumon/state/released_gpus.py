"""What nobody looks at because of a release: what is released now, and what was and has not been read since. Pure.

Between the end of a release and the first reading a GPU is neither well nor at fault: to open it may take long.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from gpumon.model.release import NODE, Release
from gpumon.model.snapshot import DriverStatus, Snapshot
from gpumon.state.messages import Samplers
from gpumon.state.report import Memory

RESUME_SECONDS = 75.0
"""Longest that the first reading after a release may take: a little more than a driver call that opens a GPU."""


def released(memory: Memory, before: Release, after: Release, lived: float) -> Memory:
    """Windows began or ended. `lived`: Moment.lived."""
    ended = _covered(before, memory) - _covered(after, memory)
    resuming = {**memory.resuming, **dict.fromkeys(ended, lived + RESUME_SECONDS)}
    return replace(memory, resuming={bus_id: until for bus_id, until in resuming.items() if not after.covers(bus_id)})


def heard(memory: Memory, arrival: Snapshot | DriverStatus | Samplers) -> Memory:
    """Somebody looked, or failed to: whatever this says counts from now on."""
    if not memory.resuming:
        return memory
    left = {one: until for one, until in memory.resuming.items() if not _says(arrival, one)}
    if isinstance(arrival, Snapshot) and memory.heard_at is not None:  # the first poll gets on, one GPU after another
        left = dict.fromkeys(left, memory.heard_at + RESUME_SECONDS)
    return replace(memory, resuming=left)


def unwatched(memory: Memory, release: Release, lived: float) -> Collection[str]:
    """Bus ids, and NODE when that is the driver itself with every GPU."""
    return _covered(release, memory) | {one for one, until in memory.resuming.items() if until > lived}


def _covered(release: Release, memory: Memory) -> set[str]:
    return {*release.bus_ids, *(memory.inventory if release.covers(NODE) else ())}


def _says(arrival: Snapshot | DriverStatus | Samplers, bus_id: str) -> bool:
    match arrival:
        case Snapshot():
            return arrival.complete or bus_id == NODE or any(seen.bus_id == bus_id for seen in arrival.gpus)
        case DriverStatus():
            return not arrival.up
        case Samplers():
            return bus_id in arrival.aside
