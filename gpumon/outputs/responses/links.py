"""Responses about the links of a node: NVLinks, and InfiniBand and RoCE ports."""

from __future__ import annotations

from pydantic import Field

from gpumon.model import infiniband, nvlink
from gpumon.model.gpu_state import GpuState
from gpumon.model.snapshot import PortReading
from gpumon.outputs.responses.base import ResponseModel, metric_rows, row_values
from gpumon.state.report import Report


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
    """Return the NVLink numbers that the store has for a GPU that has not been read since the agent started.

    Return an empty list for any other GPU.
    """
    count = state.stored.nvlinks if state.restored and state.stored is not None else None
    return [str(link) for link in range(count or 0)]


@metric_rows(infiniband.InfinibandPortInfo, infiniband.InfinibandLink, infiniband.InfinibandPort)
class PortResponse(ResponseModel):
    """One InfiniBand or RoCE port."""

    device: str = Field(description="Name of the host channel adapter.")
    port: str
    role_reason: str = Field(description="Why the port has its role.")
    restricted: bool = Field(description="True if its counters may not be read. Such a port is not checked.")

    @classmethod
    def from_port(cls, port: PortReading, info: infiniband.InfinibandPortInfo) -> PortResponse:
        return cls(
            device=port.device,
            port=port.port,
            role_reason=port.role_reason,
            restricted=port.restricted,
            **row_values(info),
            **row_values(port.link),
            **row_values(port.counts),
        )


class PortsResponse(ResponseModel):
    """All InfiniBand and RoCE ports."""

    ports: list[PortResponse]

    @classmethod
    def from_report(cls, report: Report) -> PortsResponse:
        return cls(ports=[PortResponse.from_port(port, report.port_info(port)) for port in report.ports])
