"""The rows of the store that follow from a Report: GPUs, ports and time windows."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace

from gpumon.model.port_record import PortRecord
from gpumon.model.stored_gpu import StoredGpu
from gpumon.model.time_window import MARKER, TimeWindow
from gpumon.state.gpu_inventory import Removal
from gpumon.state.report import Report

_NOT_EXPECTED = frozenset({Removal.REPLACED, Removal.ACCEPTED})


def gpu_rows(report: Report, stored: Mapping[Hashable, StoredGpu]) -> Iterator[StoredGpu]:
    """Yield the GPUs that have reported their identity, and the stored ones that are no longer expected."""
    for state in report.gpus:
        if state.stored is not None:
            yield state.stored
    for uuid, gone in report.internal.inventory.removed.items():
        if gone.why in _NOT_EXPECTED and uuid in stored:
            yield replace(stored[uuid], expected=False)


def port_rows(report: Report) -> tuple[PortRecord, ...]:
    """Return the ports that can be identified again after a restart."""
    return tuple(port for port in report.internal.ports.records.values() if port.bus_id or port.guid)


def window_rows(report: Report) -> tuple[TimeWindow, ...]:
    """Return the time windows, without those of the marker file, which is its own record."""
    return tuple(window for window in report.windows if window.by != MARKER)
