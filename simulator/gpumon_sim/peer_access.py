"""Simulates nvmlDeviceGetP2PStatus, which reports whether one GPU can access another GPU's memory."""

from __future__ import annotations

from gpumon_sim.cmemory import put
from gpumon_sim.codes import Code, Refusal
from gpumon_sim.effects import ACCESS_STATUSES, CAPABILITIES
from gpumon_sim.exports import function
from gpumon_sim.layouts import INT
from gpumon_sim.quantities import LINK_DOWN
from gpumon_sim.sim_gpu import SimGpu
from gpumon_sim.sim_node import SimNode

OK, NOT_SUPPORTED = 0, 5


@function("nvmlDeviceGetP2PStatus", "handle", "handle", "i4", "out i")
def status(node: SimNode, handle: int | None, other: int | None, capability: int, out: int | None) -> None:
    first, second = (node.device("nvmlDeviceGetP2PStatus", each, parts=False) for each in (handle, other))
    if first.identity == second.identity or not 0 <= capability < len(CAPABILITIES):
        raise Refusal(Code.INVALID_ARGUMENT)
    put(out, INT, _status(first, second, CAPABILITIES[capability]))


def _status(first: SimGpu, second: SimGpu, capability: str) -> int:
    for here, there in ((first, second), (second, first)):
        statuses = here.state.peer_access.get(there.identity.number, {})
        if capability in statuses:
            return ACCESS_STATUSES.index(statuses[capability])
    if any(device.state.mig is not None for device in (first, second)):
        return NOT_SUPPORTED
    linked = all(any(link.state != LINK_DOWN for link in device.state.links) for device in (first, second))
    return OK if linked or capability in {"read", "write", "pci"} else NOT_SUPPORTED
