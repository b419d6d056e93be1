"""Tracks GPUs that are not read because of a release: during the release, and from its end until they are read. Pure.

Until a GPU is read after its release it counts neither as healthy nor as failed, because opening it may take long.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from gpumon.model.snapshot import DriverStatus, Snapshot
from gpumon.model.time_window import NODE
from gpumon.state.messages import SamplerStatus
from gpumon.state.report import InternalState

RESUME_SECONDS = 75.0
"""Maximum seconds from the end of a release to the first reading: slightly more than a driver call that opens a GPU
may take.
"""


def follow(internal: InternalState, before: frozenset[str], after: frozenset[str], *, uptime: float) -> InternalState:
    """Return the state with `resuming` updated after the released scopes changed from `before` to `after`.

    Scopes are bus ids, and NODE for the whole node. `uptime` is Now.uptime.
    """
    if before == after:
        return internal
    ended = _covered_bus_ids(before, internal) - _covered_bus_ids(after, internal)
    resuming = {**internal.resuming, **dict.fromkeys(ended, uptime + RESUME_SECONDS)}
    return replace(
        internal, resuming={bus_id: until for bus_id, until in resuming.items() if not after & {NODE, bus_id}}
    )


def end_resuming(internal: InternalState, message: Snapshot | DriverStatus | SamplerStatus) -> InternalState:
    """Return the state without the GPUs in `resuming` that were read, or could not be read, according to a message.

    After a Snapshot, the others have RESUME_SECONDS from this Snapshot on.
    """
    if not internal.resuming:
        return internal
    left = {bus_id: until for bus_id, until in internal.resuming.items() if not _reports_on(message, bus_id)}
    if isinstance(message, Snapshot) and internal.polled_at is not None:  # the first poll opens one GPU after another
        left = dict.fromkeys(left, internal.polled_at + RESUME_SECONDS)
    return replace(internal, resuming=left)


def unwatched_bus_ids(internal: InternalState, released: frozenset[str], uptime: float) -> Collection[str]:
    """Return the bus ids of GPUs that are not read because of a release.

    The result contains NODE if no GPU of the node is read. `released`: scopes of releases. `uptime` is Now.uptime.
    """
    return _covered_bus_ids(released, internal) | {
        bus_id for bus_id, until in internal.resuming.items() if until > uptime
    }


def _covered_bus_ids(released: frozenset[str], internal: InternalState) -> set[str]:
    return {*released, *(internal.inventory.gpus if NODE in released else ())}


def _reports_on(message: Snapshot | DriverStatus | SamplerStatus, bus_id: str) -> bool:
    match message:
        case Snapshot():
            return message.complete or bus_id == NODE or any(gpu.bus_id == bus_id for gpu in message.gpus)
        case DriverStatus():
            return not message.up
        case SamplerStatus():
            return bus_id in message.quarantined
