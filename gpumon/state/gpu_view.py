"""The view of a GPU: the GpuState that outputs and checks read, made from the record of the GPU. Pure."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpumon.health.architectures import possible_xids
from gpumon.health.catalogue import Catalogue
from gpumon.model.gpu_state import GpuState
from gpumon.state.gpu_record import GpuRecord, readings


class GpuInputs(NamedTuple):
    """The values from which the GpuState of one GPU is derived."""

    record: GpuRecord
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

    def same(self, other: GpuInputs) -> bool:
        """Return True if `other` gives the same GpuState.

        Objects are compared by identity, plain values by equality.
        """
        return all(map(operator.is_, self[:3], other[:3])) and self[3:] == other[3:]


GpuView = tuple[GpuInputs, GpuState]
"""The GpuState of one GPU, preceded by its inputs."""


def view(inputs: GpuInputs, before: GpuView | None) -> GpuView:
    """Return the inputs and the GpuState made from them; the same objects as `before` if the inputs did not change."""
    if before is not None and before[0].same(inputs):
        return before
    return inputs, _state(inputs, None if before is None else before[1])


def _state(inputs: GpuInputs, before: GpuState | None) -> GpuState:
    gpu = inputs.record
    table = readings(
        gpu,
        _xids(inputs),
        inputs.fault,
        critical=inputs.catalogue.critical,
        released=inputs.released,
        health=inputs.health,
        slot_lanes=inputs.slot_lanes,
        before=None if before is None else before.gpu,
    )
    return GpuState(
        bus_id=gpu.bus_id,
        uuid=gpu.uuid,
        index=gpu.index,
        nvml_index=gpu.nvml_index,
        gpu=table,
        fault=inputs.fault,
        detail=inputs.detail,
        since=inputs.since,
        released=inputs.released,
        restored=gpu.restored,
        reset_at=gpu.reset_at,
        port_above=inputs.port_above,
        peers=gpu.peers,
        peer_access=gpu.peer_access,
        platform=gpu.platform,
        stored=gpu.stored,
        **(_reading(gpu) if inputs.fault is None and not inputs.released else {}),
    )


def _reading(gpu: GpuRecord) -> dict[str, Any]:
    """Return the fields of GpuState that come from the GPU's last reading; an empty dict if the GPU has no reading."""
    reading = gpu.reading
    if reading is None:
        return {}
    return {
        "ecc_volatile": None if reading.gpu is None else reading.gpu.ecc_errors_total,
        "links": gpu.links,
        "c2c_links": reading.c2c_links,
        "fabric": reading.fabric,
        "migs": reading.migs,
        "pids": reading.pids,
        "pids_at": reading.pids_at,
        "link_bytes": reading.link_bytes,
        "link_rates": gpu.link_rates,
        "idle_since": gpu.idle_since,
    }


def _xids(inputs: GpuInputs) -> Mapping[str, tuple[float, float]]:
    """Return, by Xid, the number of errors and the wall time of the last one.

    Critical Xids that the GPU can report, and has not reported yet, have the value (0, 0).
    """
    gpu, critical = inputs.record, inputs.catalogue.critical
    chip_to_chip = gpu.reading is not None and bool(gpu.reading.c2c_links)
    codes = possible_xids(sorted(critical), gpu.identity.get("architecture"), chip_to_chip=chip_to_chip)
    return {str(code): (0.0, 0.0) for code in codes} | dict(inputs.xids or {})
