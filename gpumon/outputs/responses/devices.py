"""Responses about GPUs, NVLinks, InfiniBand and RoCE ports, and the inventory of those that are expected."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpumon.health.products import BASES, Basis
from gpumon.model import infiniband, nvlink
from gpumon.model.gpu import FAULTS, Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.infiniband import ROLES
from gpumon.model.mig import Mig
from gpumon.model.nvlink import C2cLink, Fabric, Platform
from gpumon.model.snapshot import PLACES
from gpumon.outputs.formatting import rfc3339
from gpumon.outputs.problems import fault_text
from gpumon.outputs.responses.base import ResponseModel, metric_rows, row_values, timestamp
from gpumon.state.gpu_inventory import Removal
from gpumon.state.report import Report


@metric_rows(Fabric)
class FabricResponse(ResponseModel):
    """The registration of a GPU in an NVLink fabric, and the fabric's health."""


@metric_rows(Platform)
class PlatformResponse(ResponseModel):
    """The position of a GPU in its rack."""


@metric_rows(Mig)
class MigResponse(ResponseModel):
    """One MIG instance of a GPU, with its readings."""

    mig_uuid: str = Field(description="Identity of the compute instance.")
    gpu_instance_id: int
    compute_instance_id: int
    profile: str = Field(description="Profile of the instance as NVIDIA names it: 1c.3g.40gb.")


@metric_rows(C2cLink)
class C2cLinkResponse(ResponseModel):
    """One chip-to-chip link to a Grace CPU."""

    link: int


_STATES = ("up", *FAULTS, "released")


@metric_rows(Gpu)
class GpuResponse(ResponseModel):
    """One GPU of the inventory.

    While it has a fault or is released, only its identity, state, health, Xids and place in the rack are reported.
    """

    gpu: int = Field(description="NVML index under which the GPU was first read since boot.")
    uuid: str = Field(description="Identity. pci-<bus id> until the GPU has reported its UUID.")
    state: Literal[_STATES] = Field(description="State of the GPU: up, its fault, or released.")  # type: ignore[valid-type]
    detail: str = Field(description="Description of the fault; empty if there is none.")
    since: str | None = timestamp("When the fault was detected.")
    fabric: FabricResponse | None = Field(description="Its place in an NVLink fabric; null if it is in none.")
    platform: PlatformResponse | None = Field(description="Its place in the rack; null if the GPU does not report it.")
    migs: list[MigResponse] = Field(description="MIG instances of the GPU.")
    c2c_links: list[C2cLinkResponse] = Field(description="Chip-to-chip links of the GPU to a Grace CPU.")

    @classmethod
    def from_state(cls, state: GpuState) -> GpuResponse:
        readings = row_values(state.gpu)
        return cls(
            gpu=state.index,
            uuid=state.uuid,
            state="released" if state.released else state.fault or ("up" if readings["up"] == 1 else "unknown"),
            detail=fault_text(state),
            since=rfc3339(state.since),
            **readings | {"pci_bus_id": readings["pci_bus_id"] or state.bus_id},
            fabric=None if state.fabric is None else FabricResponse(**row_values(state.fabric)),
            platform=None if state.platform is None else PlatformResponse(**row_values(state.platform)),
            migs=[MigResponse.copied(each, mig_uuid=each.uuid, **row_values(each.mig)) for each in state.migs],
            c2c_links=[C2cLinkResponse(link=int(link), **row_values(row)) for link, row in state.c2c_links.items()],
        )


class GpusResponse(ResponseModel):
    """All GPUs of the inventory, with their readings."""

    gpus: list[GpuResponse]

    @classmethod
    def from_report(cls, report: Report) -> GpusResponse:
        return cls(gpus=[GpuResponse.from_state(state) for state in report.gpus])


@metric_rows(nvlink.Nvlink, nvlink.NvlinkPeer)
class NvlinkResponse(ResponseModel):
    """One NVLink of one GPU, with the device at its other end."""

    gpu: int
    uuid: str
    link: int


class NvlinksResponse(ResponseModel):
    """NVLinks, ordered by GPU and link number."""

    links: list[NvlinkResponse]

    @classmethod
    def from_report(cls, report: Report, uuid: str | None = None) -> NvlinksResponse:
        """Return the NVLinks of this GPU, or of all: those read since the start, else as many as are stored."""
        links = []
        for state in report.gpus:
            if uuid not in {None, state.uuid}:
                continue
            stored = state.stored.nvlinks if state.restored and state.stored is not None else None
            for link in sorted({*state.links, *state.peers}, key=int) or map(str, range(stored or 0)):
                readings = row_values(state.links.get(link, nvlink.Nvlink()))
                peer = row_values(state.peers.get(link, nvlink.NvlinkPeer()))
                links.append(NvlinkResponse(gpu=state.index, uuid=state.uuid, link=int(link), **readings, **peer))
        return cls(links=links)


@metric_rows(infiniband.InfinibandPortInfo, infiniband.InfinibandLink, infiniband.InfinibandPort)
class PortResponse(ResponseModel):
    """One InfiniBand or RoCE port."""

    device: str = Field(description="Name of the host channel adapter.")
    port: str
    role_reason: str = Field(description="Why the port has its role.")
    restricted: bool = Field(description="True if its counters may not be read. Such a port is not checked.")


class PortsResponse(ResponseModel):
    """All InfiniBand and RoCE ports."""

    ports: list[PortResponse]

    @classmethod
    def from_report(cls, report: Report) -> PortsResponse:
        return cls(
            ports=[
                PortResponse.copied(
                    port,
                    **row_values(report.port_info(port)),
                    **row_values(port.link),
                    **row_values(port.counts),
                )
                for port in report.ports
            ]
        )


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
        nvlinks = None if state.gpu.nvlinks is None else int(state.gpu.nvlinks)
        same = ("gpu", "uuid", "state", "detail", "name", "serial", "pci_bus_id", "vbios", "inforom", "gsp")
        return cls(
            **{name: response[name] for name in same},
            nvlinks=nvlinks if board is None or nvlinks is not None else board.nvlinks,
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
            ports=_ports(report),
            former_gpus=[
                FormerGpuResponse(uuid=uuid, pci_bus_id=gpu.bus_id, reason=gpu.why.value, message=LEFT[gpu.why])
                for uuid, gpu in report.inventory.removed.items()
            ],
        )


def _ports(report: Report) -> list[InventoryPortResponse]:
    ports, responses = report.host.inventory, []
    missing = {port.identity: port.port.device for port in report.gone_ports}
    up = {ports.here.get((port.device, port.port)): port.link.port_up for port in report.ports}
    for record in sorted(ports.records.values(), key=lambda port: (port.bus_id, port.device, port.port)):
        is_present, is_up = record.identity in ports.here.values(), up.get(record.identity)
        state: PortState = "unknown"
        if record.identity in missing:
            state = "missing"
        elif is_present and is_up is not None:
            down: PortState = "unwired" if record.expected is None else "down" if record.expected else "accepted"
            state = "up" if is_up else down
        elif not is_present and not record.expected:
            continue
        response = InventoryPortResponse.copied(
            record,
            device=missing.get(record.identity, record.device),
            state=state,
            port_speed_bytes_per_second=None if record.speed is None else round(record.speed),
            pci_bus_id=record.bus_id or None,
            board=record.board or None,
            firmware=record.firmware or None,
            guid=record.guid or None,
            first_up=rfc3339(record.first_up),
            last_up=rfc3339(record.last_up),
        )
        responses.append(response)
    return responses
