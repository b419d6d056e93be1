"""nvmlDeviceGetFieldValues: many fields of a GPU in one call, each of which may fail by itself."""

from __future__ import annotations

import ctypes
import struct
import time

from gpumon.sim.cmemory import whole
from gpumon.sim.codes import Code, Refusal
from gpumon.sim.device import Device
from gpumon.sim.exports import POINTER, device_function
from gpumon.sim.fields import ECC_TOTALS, NVLINK5_COUNTERS, Row, rows_of

_ENTRY = 40
"""Bytes of one nvmlFieldValue_t: the question, and the answer."""
_NUMBERS = struct.Struct("<I36x")
_QUESTION = struct.Struct("<II")  # number, scope
_ANSWER = struct.Struct("<qqiI8s")  # timestamp, latency (µs), type, return code, value
_LETTERS = "dIQQqiH"
"""Of the struct module, by NVML's type of value."""
_VALUES = [struct.Struct(f"<{letter}{8 - struct.calcsize('<' + letter)}x") for letter in _LETTERS]
_UNDEFINED = b"\xa5" * 8
"""What stands in the value of a field that failed: nothing that may be read."""
_LATENCY = 3


@device_function("nvmlDeviceGetFieldValues", ctypes.c_int, POINTER)
def field_values(device: Device, count: int, address: int | None) -> None:
    """Answer a batch in place; the call succeeds whatever its fields do."""
    if count <= 0 or not address:
        raise Refusal(Code.INVALID_ARGUMENT)
    batch = bytearray(ctypes.string_at(address, count * _ENTRY))
    rows, stamp = rows_of(device.driver), time.time_ns() // 1000
    if device.board.nvlink5 and any(number in NVLINK5_COUNTERS for number, *_ in _NUMBERS.iter_unpack(batch)):
        rows = {number: row for number, row in rows.items() if number not in ECC_TOTALS}
    for at in range(0, len(batch), _ENTRY):
        number, scope = _QUESTION.unpack_from(batch, at)
        _ANSWER.pack_into(batch, at + _QUESTION.size, stamp, _LATENCY, *_answer(rows.get(number), device, scope))
    ctypes.memmove(address, bytes(batch), len(batch))


def _answer(row: Row | None, device: Device, scope: int) -> tuple[int, int, bytes]:
    """Type, return code, value."""
    if row is None:
        return 0, Code.NOT_SUPPORTED, _UNDEFINED
    state = device.state
    if row.name in state.field_codes:
        return 0, state.field_codes[row.name], _UNDEFINED
    try:
        value = row.read(device, scope)
    except Refusal as refusal:
        return 0, refusal.code, _UNDEFINED
    if value is None:
        return 0, Code.NOT_SUPPORTED, _UNDEFINED
    kind = state.field_types.get(row.name, row.kind)
    letter = _LETTERS[kind]
    return kind, Code.SUCCESS, _VALUES[kind].pack(value if letter == "d" else whole(value, letter))
