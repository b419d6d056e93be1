"""The view of a GPU: its state as outputs and checks read it, with what is derived from other sections. Pure."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from gpumon.health.catalogue import Catalogue
from gpumon.health.xids import possible_xids
from gpumon.model.gpu_state import GpuState
from gpumon.state.gpu_record import readings


class ViewInputs(NamedTuple):
    """What the view of a GPU shows in addition to its own state."""

    xids: Mapping[str, tuple[float, float]] | None
    """Number of errors, and wall time of the last one, by Xid; None without an error."""
    catalogue: Catalogue
    fault: str | None
    detail: str
    since: float | None
    health: float
    released: bool
    port_above: str | None
    slot_lanes: int | None

    def same(self, other: ViewInputs) -> bool:
        """Return True if both give the same view. Objects are compared by identity, plain values by equality."""
        return all(map(operator.is_, self[:2], other[:2])) and self[2:] == other[2:]


class GpuView(NamedTuple):
    """A GPU as outputs and checks read it, with what it was made from."""

    gpu: GpuState
    inputs: ViewInputs
    shown: GpuState


def view(gpu: GpuState, inputs: ViewInputs, before: GpuView | None) -> GpuView:
    """Return the view of a GPU; the same object as `before` if nothing changed."""
    if before is not None and before.gpu is gpu and before.inputs.same(inputs):
        return before
    table = readings(
        gpu,
        _xids(gpu, inputs),
        inputs.fault,
        critical=inputs.catalogue.critical,
        released=inputs.released,
        health=inputs.health,
        slot_lanes=inputs.slot_lanes,
        before=None if before is None else before.shown.gpu,
    )
    shown = replace(
        gpu,
        gpu=table,
        fault=inputs.fault,
        detail=inputs.detail,
        since=inputs.since,
        released=inputs.released,
        port_above=inputs.port_above,
    )
    answers = inputs.fault is None and not inputs.released and gpu.reading is not None
    return GpuView(gpu, inputs, shown if answers else _without_reading(shown))


def _without_reading(gpu: GpuState) -> GpuState:
    return replace(
        gpu,
        ecc_volatile=None,
        links={},
        c2c_links={},
        fabric=None,
        migs=(),
        link_rates={},
        idle_since=None,
        pids=None,
        pids_at=None,
        link_bytes={},
    )


def _xids(gpu: GpuState, inputs: ViewInputs) -> Mapping[str, tuple[float, float]]:
    """Return, by Xid, the number of errors and the wall time of the last one.

    Critical Xids that the GPU can report, and has not reported yet, have the value (0, 0).
    """
    critical = sorted(inputs.catalogue.critical)
    chip_to_chip = gpu.reading is not None and bool(gpu.reading.c2c_links)
    codes = possible_xids(critical, gpu.identity.get("architecture"), chip_to_chip=chip_to_chip)
    return {str(code): (0.0, 0.0) for code in codes} | dict(inputs.xids or {})
