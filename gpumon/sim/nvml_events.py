"""Simulates NVML's functions for event sets, by which a client receives Xids and MIG changes."""

from __future__ import annotations

import time

from gpumon.sim.arrivals import Message, SimEventSet
from gpumon.sim.cmemory import put
from gpumon.sim.codes import Code, Refusal
from gpumon.sim.exports import function, getter, node_function
from gpumon.sim.layouts import EVENT_DATA, POINTER
from gpumon.sim.sim_node import SimNode

_SETS = 0x7E5B_0000_0000
_RECHECK = 0.05


getter("nvmlDeviceGetSupportedEventTypes", "Q")(lambda device: device.board.event_types)


@node_function("nvmlEventSetCreate", "object")
def create(node: SimNode, out: int | None) -> None:
    pointer = _SETS | node.serial() << 8
    put(out, POINTER, pointer)
    node.event_sets[pointer] = SimEventSet()


@node_function("nvmlEventSetFree", "object")
def free(node: SimNode, pointer: int | None) -> None:
    _set(node, pointer)
    del node.event_sets[pointer or 0]


@function("nvmlDeviceRegisterEvents", "handle", "u8", "object")
def register(node: SimNode, handle: int | None, types: int, pointer: int | None) -> None:
    """Register an event set for events of a GPU. `types` are NVML's event type bits.

    If any of the types is not supported, raise Refusal (NOT_SUPPORTED) and register none of them.
    """
    device = node.device("nvmlDeviceRegisterEvents", handle)
    if types & ~device.board.event_types:
        raise Refusal(Code.NOT_SUPPORTED)
    registered = _set(node, pointer).registered
    before, since = registered.get(device.identity.number, (0, node.time()))
    registered[device.identity.number] = before | types, since


@node_function("nvmlEventSetWait_v2", "object", "object", "u4")
def wait(node: SimNode, pointer: int | None, out: int | None, milliseconds: int) -> None:
    """Write the next event of a set to `out`. Raise Refusal (TIMEOUT) if no event occurs within `milliseconds`.

    If there is no event and a registered GPU is lost or not listed by NVML, raise Refusal (GPU_IS_LOST) immediately.
    """
    deadline = time.monotonic() + milliseconds / 1000
    while True:
        waiting = _set(node, pointer)
        arrival = _next_message(node, waiting)
        if arrival is not None:
            _, gpu, *words, _ = arrival
            put(out, EVENT_DATA, node.handle(gpu), *words)
            return
        if any(node.gpus.is_gone(gpu) for gpu in waiting.registered):
            raise Refusal(Code.GPU_IS_LOST)
        left = deadline - time.monotonic()
        if left <= 0:
            raise Refusal(Code.TIMEOUT)
        time.sleep(min(_RECHECK, left))


def _next_message(node: SimNode, waiting: SimEventSet) -> Message | None:
    arrivals = {gpu: node.arrivals(gpu) for gpu in waiting.registered}
    storms = {gpu: node.storms(gpu) for gpu in waiting.registered}
    return waiting.next(arrivals, storms, node.time())


def _set(node: SimNode, pointer: int | None) -> SimEventSet:
    """Return the event set at a pointer. Raise Refusal if the pointer is invalid or NVML is not initialised."""
    if not node.initialised:
        raise Refusal(Code.UNINITIALIZED)
    if pointer not in node.event_sets:
        raise Refusal(Code.INVALID_ARGUMENT)
    return node.event_sets[pointer]
