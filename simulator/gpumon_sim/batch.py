"""Simulates nvmlDeviceGetFieldValues, which reads many fields of a GPU in one call. Each field may fail separately."""

from __future__ import annotations

import ctypes
import struct
import time

from gpumon_sim.cmemory import whole
from gpumon_sim.codes import Code, Refusal
from gpumon_sim.exports import device_function
from gpumon_sim.field_values import ECC_TOTALS, NVLINK5_COUNTERS, FieldValueRow, rows_of
from gpumon_sim.layouts import FIELD_VALUE
from gpumon_sim.sim_gpu import SimGpu

_LETTERS = "dIQQqiH"
"""Format characters of the struct module, indexed by NVML's number of the value type."""
_VALUES = [struct.Struct(f"<{letter}{8 - struct.calcsize('<' + letter)}x") for letter in _LETTERS]
_UNDEFINED = b"\xa5" * 8
"""Value of a failed field. NVML leaves these bytes undefined; the pattern reveals a client that reads them."""
_LATENCY = 3


@device_function("nvmlDeviceGetFieldValues", "i4", "object")
def field_values(device: SimGpu, count: int, address: int | None) -> None:
    """Write the answer for each requested field into the caller's array at `address`: `count` nvmlFieldValue_t.

    The call succeeds even if some fields fail. On GPUs with NVLink 5, the ECC totals fail if the same batch requests
    NVLink 5 counters.
    """
    if count <= 0 or not address:
        raise Refusal(Code.INVALID_ARGUMENT)
    batch = ctypes.string_at(address, count * FIELD_VALUE.size)
    rows, stamp = rows_of(device.driver), time.time_ns() // 1000
    questions = [(number, scope) for number, scope, *_ in FIELD_VALUE.iter_unpack(batch)]
    if device.board.nvlink5 and any(number in NVLINK5_COUNTERS for number, _ in questions):
        rows = {number: row for number, row in rows.items() if number not in ECC_TOTALS}
    answers = (
        FIELD_VALUE.pack(number, scope, stamp, _LATENCY, *_answer(rows.get(number), device, scope))
        for number, scope in questions
    )
    ctypes.memmove(address, b"".join(answers), len(batch))


def _answer(row: FieldValueRow | None, device: SimGpu, scope: int) -> tuple[int, int, bytes]:
    """Return the value type, return code and value bytes of one field. `row` is None if the driver lacks the field."""
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
