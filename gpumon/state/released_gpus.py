"""Sets the time windows of the Report, and tracks the GPUs that are not read because of a release. Pure.

A GPU is not read during its release, and then until a child opens the GPU again, which may take long. In all this time
the GPU counts neither as healthy nor as failed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from gpumon.model import time_window
from gpumon.model.now import Now
from gpumon.model.snapshot import DriverStatus, Snapshot
from gpumon.model.time_window import NODE, Windows, released_scopes
from gpumon.state.messages import SamplerStatus
from gpumon.state.report import InternalState, Report

RESUME_SECONDS = 75.0
"""Maximum seconds from the end of a release to the first reading: slightly more than a driver call that opens a GPU
may take.
"""


def apply_windows(report: Report, windows: Windows, now: Now) -> Report:
    """Return the Report with these windows, advanced to the time `now`, and with `resuming` updated for releases."""
    windows = time_window.advance(windows, now, report.boot_id)
    if windows is report.windows:
        return report
    internal = report.internal
    before, after = released_scopes(report.windows), released_scopes(windows)
    if before != after:
        ended = _covered_bus_ids(before, internal) - _covered_bus_ids(after, internal)
        resuming = {**internal.resuming, **dict.fromkeys(ended, now.uptime + RESUME_SECONDS)}
        left = {bus_id: until for bus_id, until in resuming.items() if not after & {NODE, bus_id}}
        internal = replace(internal, resuming=left)
    return replace(report, windows=windows, internal=internal)


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
