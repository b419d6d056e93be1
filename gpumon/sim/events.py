"""Event sets: how Xids reach a program that waits for them."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpumon.sim.cmemory import put
from gpumon.sim.codes import Code, Refusal
from gpumon.sim.exports import POINTER, UINT, ULONGLONG, device_function, function, getter

if TYPE_CHECKING:
    from gpumon.sim.device import Device
    from gpumon.sim.node import Arrival, Node

XID = 0x8
_DATA = struct.Struct("<QQQII")  # device, type, datum, GPU instance, compute instance
_POINTER = struct.Struct("<Q")
_SETS = 0x7E5B_0000_0000
_NOT_ATTRIBUTED = 0xFFFFFFFF
_LOOK_EVERY = 0.05


@dataclass(slots=True)
class EventSet:
    """What a set waits for: by GPU, the types and since when."""

    registered: dict[int, tuple[int, float]] = field(default_factory=dict)
    delivered: set[Arrival] = field(default_factory=set)


getter("nvmlDeviceGetSupportedEventTypes", "Q")(lambda device: device.profile.event_types)


@function("nvmlEventSetCreate", POINTER)
def create(node: Node, out: int | None) -> None:
    node.enter("nvmlEventSetCreate")
    pointer = _SETS | node.serial() << 8
    put(out, _POINTER, pointer)
    node.event_sets[pointer] = EventSet()


@function("nvmlEventSetFree", POINTER)
def free(node: Node, pointer: int | None) -> None:
    node.enter("nvmlEventSetFree")
    _set(node, pointer)
    del node.event_sets[pointer or 0]


@device_function("nvmlDeviceRegisterEvents", ULONGLONG, POINTER)
def register(device: Device, types: int, pointer: int | None) -> None:
    """One unsupported type, and nothing is registered."""
    if types & ~device.profile.event_types:
        raise Refusal(Code.NOT_SUPPORTED)
    registered = _set(device.node, pointer).registered
    before, since = registered.get(device.identity.number, (0, device.node.time()))
    registered[device.identity.number] = before | types, since


@function("nvmlEventSetWait_v2", POINTER, POINTER, UINT)
def wait(node: Node, pointer: int | None, out: int | None, milliseconds: int) -> None:
    """The next event, else TIMEOUT; GPU_IS_LOST at once and every time while a registered GPU is lost."""
    node.enter("nvmlEventSetWait_v2")
    deadline = time.monotonic() + milliseconds / 1000
    while True:
        waiting = _set(node, pointer)
        arrival = _next(node, waiting)
        if arrival is not None:
            waiting.delivered.add(arrival)
            put(out, _DATA, node.handle(arrival.gpu), XID, arrival.xid, _NOT_ATTRIBUTED, _NOT_ATTRIBUTED)
            return
        if any(node.gone(gpu) for gpu in waiting.registered):
            raise Refusal(Code.GPU_IS_LOST)
        left = deadline - time.monotonic()
        if left <= 0:
            raise Refusal(Code.TIMEOUT)
        time.sleep(min(_LOOK_EVERY, left))


def _set(node: Node, pointer: int | None) -> EventSet:
    """Of this initialisation; the sets of earlier ones went with them."""
    if not node.initialised:
        raise Refusal(Code.UNINITIALIZED)
    if pointer not in node.event_sets:
        raise Refusal(Code.INVALID_ARGUMENT)
    return node.event_sets[pointer]


def _next(node: Node, waiting: EventSet) -> Arrival | None:
    """The first that came after registration and has not been delivered."""
    new = (
        arrival
        for gpu, (types, since) in waiting.registered.items()
        for arrival in node.arrivals(gpu)
        if types & XID and arrival.time > since and arrival not in waiting.delivered
    )
    return min(new, default=None)
