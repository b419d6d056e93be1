"""Responses about GPUs, NVLinks, and InfiniBand and RoCE ports."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpumon.model import infiniband, nvlink
from gpumon.model.fabric import Fabric, Platform
from gpumon.model.gpu import FAULTS, Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.mig import Mig
from gpumon.model.nvlink import C2cLink
from gpumon.model.snapshot import MigReading
from gpumon.outputs.formatting import rfc3339
from gpumon.outputs.problems import fault_text
from gpumon.outputs.responses.base import ResponseModel, metric_rows, row_values, timestamp
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

    @classmethod
    def from_instance(cls, instance: MigReading) -> MigResponse:
        return cls(
            mig_uuid=instance.uuid,
            gpu_instance_id=instance.gpu_instance_id,
            compute_instance_id=instance.compute_instance_id,
            profile=instance.profile,
            **row_values(instance.mig),
        )


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
            migs=[MigResponse.from_instance(instance) for instance in state.migs],
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
        """Return the NVLinks of the GPU with this uuid, or of all GPUs if `uuid` is None.

        If a GPU has a fault or is released, the readings of its links are null, and only links whose peer was read
        since the agent started are listed; before the first reading, as many as the store has.
        """
        return cls(
            links=[
                NvlinkResponse(
                    gpu=state.index,
                    uuid=state.uuid,
                    link=int(link),
                    **row_values(state.links.get(link, nvlink.Nvlink())),
                    **row_values(state.peers.get(link, nvlink.NvlinkPeer())),
                )
                for state in report.gpus
                if uuid in {None, state.uuid}
                for link in sorted({*state.links, *state.peers}, key=int) or _stored_links(state)
            ]
        )


def _stored_links(state: GpuState) -> list[str]:
    """Return the NVLink numbers that the store has for a GPU that has not been read since the agent started."""
    count = state.stored.nvlinks if state.restored and state.stored is not None else None
    return [str(link) for link in range(count or 0)]


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
                PortResponse(
                    device=port.device,
                    port=port.port,
                    role_reason=port.role_reason,
                    restricted=port.restricted,
                    **row_values(report.port_info(port)),
                    **row_values(port.link),
                    **row_values(port.counts),
                )
                for port in report.ports
            ]
        )
