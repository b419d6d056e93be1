"""GPUs that are not read because of a release: those released now, and those not read yet since their release. Pure.

Between the end of a release and its first reading a GPU is neither healthy nor failed, because opening it may take
long.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from gpumon.model.snapshot import DriverStatus, Snapshot
from gpumon.model.time_window import NODE
from gpumon.state.messages import SamplerStatus
from gpumon.state.report import InternalState

RESUME_SECONDS = 75.0
"""Maximum time for the first reading after a release: slightly more than a driver call that opens a GPU."""


def follow(memory: InternalState, before: frozenset[str], after: frozenset[str], *, uptime: float) -> InternalState:
    """Update `resuming` when the released scopes change. `uptime` is Now.uptime."""
    if before == after:
        return memory
    ended = _covered(before, memory) - _covered(after, memory)
    resuming = {**memory.resuming, **dict.fromkeys(ended, uptime + RESUME_SECONDS)}
    return replace(memory, resuming={bus_id: until for bus_id, until in resuming.items() if not after & {NODE, bus_id}})


def heard(memory: InternalState, message: Snapshot | DriverStatus | SamplerStatus) -> InternalState:
    """Remove from `resuming` what this message reports: a reading, or a failure to read."""
    if not memory.resuming:
        return memory
    left = {bus_id: until for bus_id, until in memory.resuming.items() if not _reports_on(message, bus_id)}
    if isinstance(message, Snapshot) and memory.polled_at is not None:  # the first poll reads one GPU after another
        left = dict.fromkeys(left, memory.polled_at + RESUME_SECONDS)
    return replace(memory, resuming=left)


def unwatched(memory: InternalState, released: frozenset[str], uptime: float) -> Collection[str]:
    """Return the bus ids that are not read because of a release; NODE if no GPU of the node is read."""
    return _covered(released, memory) | {bus_id for bus_id, until in memory.resuming.items() if until > uptime}


def _covered(released: frozenset[str], memory: InternalState) -> set[str]:
    return {*released, *(memory.inventory.gpus if NODE in released else ())}


def _reports_on(message: Snapshot | DriverStatus | SamplerStatus, bus_id: str) -> bool:
    match message:
        case Snapshot():
            return message.complete or bus_id == NODE or any(gpu.bus_id == bus_id for gpu in message.gpus)
        case DriverStatus():
            return not message.up
        case SamplerStatus():
            return bus_id in message.quarantined
