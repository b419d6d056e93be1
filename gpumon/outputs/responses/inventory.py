"""Responses about the inventory: the GPUs and ports that are expected or present."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from gpumon.health.products import BASES, Basis
from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.infiniband import ROLES
from gpumon.model.records import PortRecord, StoredGpu
from gpumon.model.snapshot import PLACES
from gpumon.outputs.formatting import rfc3339
from gpumon.outputs.responses.base import ResponseModel, timestamp
from gpumon.outputs.responses.devices import GpuResponse
from gpumon.state.gpu_inventory import Removal
from gpumon.state.report import Report

LEFT = {
    Removal.GIVEN: "is bound to another driver",
    Removal.EXCLUDED: "is excluded by the configuration",
    Removal.REPLACED: "was replaced",
    Removal.ACCEPTED: "is no longer expected",
}
"""Text on why a GPU that was present is no longer expected, by reason."""
PortState = Literal["up", "down", "missing", "unwired", "accepted", "unknown"]


class InventoryGpuResponse(ResponseModel):
    """One GPU of the inventory: its identity, its state, and when it was first and last read."""

    gpu: int | None = Field(description="Index in the boot in which the GPU was last read.")
    uuid: str
    state: str | None = Field(description="State of the GPU as in /api/v1/gpus: `up`, `missing`, ...")
    detail: str
    name: str | None
    serial: str | None
    pci_bus_id: str = Field(description="Current or last PCI address.")
    nvlinks: int | None
    vbios: str | None
    inforom: str | None
    gsp: str | None
    first_seen: str | None = timestamp("When the GPU was first read.")
    last_seen: str | None = timestamp("When the GPU was last read.")

    @classmethod
    def from_state(cls, state: GpuState) -> InventoryGpuResponse:
        response, board = GpuResponse.from_state(state).document(), state.stored
        same = ("gpu", "uuid", "state", "detail", "name", "serial", "pci_bus_id", "vbios", "inforom", "gsp")
        return cls(
            **{name: response[name] for name in same},
            nvlinks=_nvlinks(state.gpu, board),
            first_seen=None if board is None else rfc3339(board.first_wall),
            last_seen=None if board is None else rfc3339(board.last_wall),
        )


class InventoryPortResponse(ResponseModel):
    """One InfiniBand or RoCE port that is present or expected."""

    device: str = Field(description="Device name. A missing port has its PCI address if another port has its name now.")
    port: str
    state: PortState | None = Field(
        description="`down` and `missing`: it was in use before; `unwired`: it was never up; `accepted`: it is down, "
        "and an operator has accepted that."
    )
    role: Literal[ROLES] | None = Field(  # type: ignore[valid-type]
        description="`fabric` or `other`, as in /api/v1/ports, when it was last present."
    )
    link_layer: str
    port_speed_bytes_per_second: int | None = Field(
        description="Highest speed of the port per direction, or a lower one that an operator accepted."
    )
    pci_bus_id: str | None = Field(description="Current or last PCI address.")
    board: str | None
    firmware: str | None
    guid: str | None = Field(description="Node GUID of the port's adapter.")
    first_up: str | None = timestamp("When the port was first up.")
    last_up: str | None = timestamp("When the port was last up.")

    @classmethod
    def from_record(cls, record: PortRecord, device: str, state: PortState) -> InventoryPortResponse:
        return cls(
            device=device,
            port=record.port,
            state=state,
            role=record.role,
            link_layer=record.link_layer,
            port_speed_bytes_per_second=None if record.speed is None else round(record.speed),
            pci_bus_id=record.bus_id or None,
            board=record.board or None,
            firmware=record.firmware or None,
            guid=record.guid or None,
            first_up=rfc3339(record.first_up),
            last_up=rfc3339(record.last_up),
        )


class FormerGpuResponse(ResponseModel):
    """One GPU that was present and is no longer expected."""

    uuid: str
    pci_bus_id: str
    reason: Literal[tuple(reason.value for reason in Removal)]  # type: ignore[valid-type]
    message: str


class InventoryResponse(ResponseModel):
    """The GPUs and ports that are expected or present."""

    place: Literal[PLACES] | None = Field(description="Where the agent runs.")  # type: ignore[valid-type]
    gpus_expected: int
    basis: Literal[tuple(basis.value for basis in Basis)] = Field(  # type: ignore[valid-type]
        description="What the expected number is based on."
    )
    basis_text: str
    gpus_visible: int | None = Field(description="GPUs that the driver counts.")
    gpus_possible: int | None = Field(
        description="Set in a guest or a container if the host may have more GPUs than are expected here."
    )
    unlisted: list[str] = Field(description="PCI addresses of GPUs on the bus that the driver does not list.")
    gpus: list[InventoryGpuResponse]
    ports: list[InventoryPortResponse]
    former_gpus: list[FormerGpuResponse] = Field(description="GPUs that were present and are no longer expected.")

    @classmethod
    def from_report(cls, report: Report) -> InventoryResponse:
        expectation, visible = report.expectation, report.node.gpus_visible
        return cls(
            place=expectation.place,
            gpus_expected=expectation.count,
            basis=expectation.basis.value,
            basis_text=BASES[expectation.basis],
            gpus_visible=None if visible is None else int(visible),
            gpus_possible=expectation.may,
            unlisted=list(expectation.unlisted),
            gpus=[InventoryGpuResponse.from_state(state) for state in report.gpus],
            ports=list(_ports(report)),
            former_gpus=[
                FormerGpuResponse(uuid=uuid, pci_bus_id=gpu.bus_id, reason=gpu.why.value, message=LEFT[gpu.why])
                for uuid, gpu in report.inventory.removed.items()
            ],
        )


def _nvlinks(gpu: Gpu, board: StoredGpu | None) -> int | None:
    if gpu.nvlinks is not None:
        return int(gpu.nvlinks)
    return None if board is None else board.nvlinks


def _ports(report: Report) -> Iterator[InventoryPortResponse]:
    """Yield the responses of the ports that are present or expected, ordered by PCI address."""
    ports = report.host.inventory
    missing = {port.identity: port.port.device for port in report.gone_ports}
    up = {ports.here.get((port.device, port.port)): port.link.port_up for port in report.ports}
    for record in sorted(ports.records.values(), key=lambda port: (port.bus_id, port.device, port.port)):
        if record.identity in missing:
            yield InventoryPortResponse.from_record(record, missing[record.identity], "missing")
        elif record.identity in ports.here.values():
            state = _port_state(record, up.get(record.identity))
            yield InventoryPortResponse.from_record(record, record.device, state)
        elif record.expected:
            yield InventoryPortResponse.from_record(record, record.device, "unknown")


def _port_state(record: PortRecord, up: float | None) -> PortState:
    if up is None:
        return "unknown"
    if up:
        return "up"
    if record.expected is None:
        return "unwired"
    return "down" if record.expected else "accepted"
