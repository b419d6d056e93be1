"""Simulates NVML's functions for event sets, by which a client receives Xids and MIG changes."""

from __future__ import annotations

from functools import partial

from gpumon_sim.arrivals import SimEventSet
from gpumon_sim.codes import Code, Refusal
from gpumon_sim.exports import function, getter, node_function
from gpumon_sim.sim_node import SimNode

getter("nvmlDeviceGetSupportedEventTypes", "Q")(lambda device: device.board.event_types)


@node_function("nvmlEventSetCreate", "object")
def create(node: SimNode, out: int | None) -> None:
    node.event_sets.allocate(out, SimEventSet())


@node_function("nvmlEventSetFree", "object")
def free(node: SimNode, pointer: int | None) -> None:
    node.event_sets.free(pointer)


@function("nvmlDeviceRegisterEvents", "handle", "u8", "object")
def register(node: SimNode, handle: int | None, types: int, pointer: int | None) -> None:
    """Register an event set for events of a GPU. `types` are NVML's event type bits.

    If any of the types is not supported, raise Refusal (NOT_SUPPORTED) and register none of them.
    """
    device = node.device("nvmlDeviceRegisterEvents", handle)
    if types & ~device.board.event_types:
        raise Refusal(Code.NOT_SUPPORTED)
    registered = node.event_set(pointer).registered
    before, since = registered.get(device.identity.number, (0, node.time()))
    registered[device.identity.number] = before | types, since


@node_function("nvmlEventSetWait_v2", "object", "object", "u4")
def wait(node: SimNode, pointer: int | None, out: int | None, milliseconds: int) -> None:
    """Write the next event of a set to `out`. Raise Refusal (TIMEOUT) if no event occurs within `milliseconds`.

    If there is no event and a registered GPU is lost or not listed by NVML, raise Refusal (GPU_IS_LOST) immediately.
    """
    node.wait(pointer, out, milliseconds, partial(_next_event, node))


def _next_event(node: SimNode, waiting: SimEventSet) -> tuple[int, ...] | None:
    arrivals = {gpu: node.arrivals(gpu) for gpu in waiting.registered}
    storms = {gpu: node.storms(gpu) for gpu in waiting.registered}
    message = waiting.next(arrivals, storms, node.time())
    if message is not None:
        _, gpu, *words, _ = message
        return node.handle(gpu), *words
    if any(node.gpus.is_gone(gpu) for gpu in waiting.registered):
        raise Refusal(Code.GPU_IS_LOST)
    return None
