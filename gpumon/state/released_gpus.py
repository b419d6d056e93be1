"""What nobody looks at because of a release: what is released now, and what was and has not been read since. Pure.

Between the end of a release and the first reading a GPU is neither well nor at fault: to open it may take long.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from gpumon.model.release import NODE, Release
from gpumon.model.snapshot import DriverStatus, Snapshot
from gpumon.state.messages import SamplerStatus
from gpumon.state.report import InternalState

RESUME_SECONDS = 75.0
"""Longest that the first reading after a release may take: a little more than a driver call that opens a GPU."""


def released(memory: InternalState, before: Release, after: Release, uptime: float) -> InternalState:
    """Windows began or ended. `lived`: Now.uptime."""
    ended = _covered(before, memory) - _covered(after, memory)
    resuming = {**memory.resuming, **dict.fromkeys(ended, uptime + RESUME_SECONDS)}
    return replace(memory, resuming={bus_id: until for bus_id, until in resuming.items() if not after.covers(bus_id)})


def heard(memory: InternalState, arrival: Snapshot | DriverStatus | SamplerStatus) -> InternalState:
    """Somebody looked, or failed to: whatever this says counts from now on."""
    if not memory.resuming:
        return memory
    left = {one: until for one, until in memory.resuming.items() if not _says(arrival, one)}
    if isinstance(arrival, Snapshot) and memory.polled_at is not None:  # the first poll gets on, one GPU after another
        left = dict.fromkeys(left, memory.polled_at + RESUME_SECONDS)
    return replace(memory, resuming=left)


def unwatched(memory: InternalState, release: Release, uptime: float) -> Collection[str]:
    """Bus ids, and NODE when that is the driver itself with every GPU."""
    return _covered(release, memory) | {one for one, until in memory.resuming.items() if until > uptime}


def _covered(release: Release, memory: InternalState) -> set[str]:
    return {*release.bus_ids, *(memory.inventory.gpus if release.covers(NODE) else ())}


def _says(arrival: Snapshot | DriverStatus | SamplerStatus, bus_id: str) -> bool:
    match arrival:
        case Snapshot():
            return arrival.complete or bus_id == NODE or any(seen.bus_id == bus_id for seen in arrival.gpus)
        case DriverStatus():
            return not arrival.up
        case SamplerStatus():
            return bus_id in arrival.quarantined
