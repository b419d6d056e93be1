"""nvmlDeviceGetFieldValues: many fields of a GPU in one call, each of which may fail by itself."""

from __future__ import annotations

import ctypes
import struct
import time

from gpumon.sim.cmemory import whole
from gpumon.sim.codes import Code, Refusal
from gpumon.sim.device import Device
from gpumon.sim.exports import POINTER, device_function
from gpumon.sim.fields import Row, rows_of

_ENTRY = struct.Struct("<IIqqiI8s")  # number, scope, timestamp, latency (µs), type, return code, value
_LETTERS = "dIQQqiH"
"""Of the struct module, by NVML's type of value."""
_UNDEFINED = b"\xa5" * 8
"""What stands in the value of a field that failed: nothing that may be read."""
_LATENCY = 3


@device_function("nvmlDeviceGetFieldValues", ctypes.c_int, POINTER)
def field_values(device: Device, count: int, address: int | None) -> None:
    """Answer a batch in place; the call succeeds whatever its fields do."""
    if count <= 0 or not address:
        raise Refusal(Code.INVALID_ARGUMENT)
    batch = bytearray(ctypes.string_at(address, count * _ENTRY.size))
    rows, stamp = rows_of(device.driver), time.time_ns() // 1000
    for at in range(0, len(batch), _ENTRY.size):
        number, scope, *_ = _ENTRY.unpack_from(batch, at)
        kind, code, value = _answer(rows.get(number), device, scope)
        _ENTRY.pack_into(batch, at, number, scope, stamp, _LATENCY, kind, code, value)
    ctypes.memmove(address, bytes(batch), len(batch))


def _answer(row: Row | None, device: Device, scope: int) -> tuple[int, int, bytes]:
    if row is None:
        return 0, Code.NOT_SUPPORTED, _UNDEFINED
    refused = device.state.field_codes.get(row.name)
    if refused is not None:
        return 0, refused, _UNDEFINED
    try:
        value = row.read(device, scope)
    except Refusal as refusal:
        return 0, refusal.code, _UNDEFINED
    if value is None:
        return 0, Code.NOT_SUPPORTED, _UNDEFINED
    kind = device.state.field_types.get(row.name, row.kind)
    letter = _LETTERS[kind]
    stored = struct.pack("<d", value) if letter == "d" else struct.pack("<" + letter, whole(value, letter))
    return kind, Code.SUCCESS, stored.ljust(8, b"\0")
