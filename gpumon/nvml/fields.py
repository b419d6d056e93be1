"""A batch of fields of one GPU: one driver call, decoded without one Python object a field."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpumon.nvml.library import UNKNOWN, Library

# nvmlFieldValue_t: fieldId, scopeId, timestamp, latencyUsec, valueType, nvmlReturn, value
_LAYOUT = struct.Struct("<IIqqIi8s")
_DOUBLE = 0
_VALUE_TYPES = {
    _DOUBLE: struct.Struct("<d"),
    1: struct.Struct("<I4x"),
    2: struct.Struct("<Q"),
    3: struct.Struct("<Q"),
    4: struct.Struct("<q"),
    5: struct.Struct("<i4x"),
    6: struct.Struct("<H6x"),
}


class Asked(NamedTuple):
    """A field to ask: its number and scope."""

    number: int
    scope: int


class Answer(NamedTuple):
    """A value, or the code of the failure of this one field."""

    code: int
    value: float | None


class Batch:
    """A fixed list of fields and the memory to ask for them again and again."""

    def __init__(self, asked: Sequence[Asked]) -> None:
        # The driver leaves alone what it does not know: each entry starts out as failed.
        self._question = b"".join(_LAYOUT.pack(one.number, one.scope, 0, 0, 0, UNKNOWN, b"") for one in asked)
        self._buffer = ctypes.create_string_buffer(len(self._question))
        self._count = len(asked)

    def read(self, library: Library, handle: Any, bus_id: str) -> list[Answer]:
        """Answers in the order asked. Raises NvmlError when the call itself fails."""
        ctypes.memmove(self._buffer, self._question, len(self._question))
        library.field_values(handle, self._count, self._buffer, bus_id=bus_id)
        return [
            _answer(timestamp, value_type, code, value)
            for _, _, timestamp, _, value_type, code, value in _LAYOUT.iter_unpack(
                self._buffer.raw[: len(self._question)]
            )
        ]


def _answer(timestamp: int, value_type: int, code: int, value: bytes) -> Answer:
    if code:
        return Answer(code, None)
    layout = _VALUE_TYPES.get(value_type)
    # With ECC off some drivers say success and fill in nothing: no time, and a type that none of our fields has.
    if layout is None or (value_type == _DOUBLE and not timestamp):
        return Answer(0, None)
    return Answer(0, float(layout.unpack(value)[0]))
