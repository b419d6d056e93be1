"""A batch of fields of one GPU: one driver call, on memory of our own that is used again and again."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpumon.collectors.nvml.library import UNKNOWN, Library, NvmlError

# nvmlFieldValue_t: fieldId, scopeId, timestamp, latencyUsec, valueType, nvmlReturn, value
_LAYOUT = struct.Struct("<IIqqIi8s")
_DOUBLE = 0
"""A type that no field of ours has."""
_VALUE_TYPES = {
    1: struct.Struct("<I4x"),
    2: struct.Struct("<Q"),
    3: struct.Struct("<Q"),
    4: struct.Struct("<q"),
    5: struct.Struct("<i4x"),
    6: struct.Struct("<H6x"),
}


ALL_ONES = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
"""How drivers write that they have no value, where they do not say so."""
NONSENSE = math.inf
"""Stands for what was answered and cannot be a value, through all that is worked out from it."""


class Scoped(NamedTuple):
    """A field to ask."""

    name: str
    scope: int = 0
    link: bool = False
    """Whether the scope is a link."""


Answer = float | NvmlError | None
"""A value, NONSENSE, the failure of this one field, or None: success with nothing filled in."""


class Batch:
    """A fixed list of fields and the memory to ask for them again and again."""

    def __init__(self, scoped: Sequence[Scoped], numbers: Mapping[str, int]) -> None:
        # The driver leaves alone what it does not know: each entry starts out as failed.
        entries = (_LAYOUT.pack(numbers[one.name], one.scope, 0, 0, 0, UNKNOWN, b"") for one in scoped)
        self.scoped = tuple(scoped)
        self._question = b"".join(entries)
        self._buffer = ctypes.create_string_buffer(self._question, len(self._question))

    def read(self, library: Library, handle: Any, bus_id: str) -> dict[Scoped, Answer]:
        """What each field answers. Raises NvmlError when the call itself fails."""
        ctypes.memmove(self._buffer, self._question, len(self._question))
        library.raw("nvmlDeviceGetFieldValues", handle, len(self.scoped), self._buffer, bus_id=bus_id)
        return {
            scoped: _answer(timestamp, kind, value) if not code else NvmlError(code, f"field {scoped.name}")
            for scoped, (_, _, timestamp, _, kind, code, value) in zip(
                self.scoped, _LAYOUT.iter_unpack(self._buffer), strict=True
            )
        }


def _answer(timestamp: int, kind: int, value: bytes) -> float | None:
    layout = _VALUE_TYPES.get(kind)
    if layout is None:
        # With ECC off some drivers say success and fill in nothing. A double that has a time is the wrong type.
        return None if kind == _DOUBLE and not timestamp else NONSENSE
    (number,) = layout.unpack(value)
    return NONSENSE if number in ALL_ONES else float(number)
