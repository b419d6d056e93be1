"""Read several NVML fields of one GPU with one driver call, into a buffer that is used again for each reading."""

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
"""NVML's value type "double". None of gpumon's fields has it."""
_VALUE_TYPES = {
    1: struct.Struct("<I4x"),
    2: struct.Struct("<Q"),
    3: struct.Struct("<Q"),
    4: struct.Struct("<q"),
    5: struct.Struct("<i4x"),
    6: struct.Struct("<H6x"),
}


ALL_ONES = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
"""Values that drivers return instead of an error if they have no value."""
NONSENSE = math.inf
"""Infinity replaces an answer that cannot be valid. Values computed from it are infinite, and so are dropped later."""


class Scoped(NamedTuple):
    """An NVML field and its scope, for example a link number."""

    name: str
    scope: int = 0
    link: bool = False
    """Whether the scope is a link number."""


Answer = float | NvmlError | None
"""Answer of the driver for a field: a value, NONSENSE, an error, or None for success without a value."""


class Batch:
    """Fields that are read together with one driver call, and the buffer for it. `numbers`: field ids by name."""

    def __init__(self, scoped: Sequence[Scoped], numbers: Mapping[str, int]) -> None:
        # The driver does not write entries of unknown fields, so each entry starts as failed.
        entries = (_LAYOUT.pack(numbers[field.name], field.scope, 0, 0, 0, UNKNOWN, b"") for field in scoped)
        self.scoped = tuple(scoped)
        self._question = b"".join(entries)
        self._buffer = ctypes.create_string_buffer(self._question, len(self._question))

    def read(self, library: Library, handle: Any, bus_id: str) -> dict[Scoped, Answer]:
        """Read the fields by one driver call. Return an answer or error for each. Raise NvmlError if the call fails."""
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
        # Without a value, some drivers return success, type double and no timestamp, for example if ECC is disabled.
        return None if kind == _DOUBLE and not timestamp else NONSENSE
    (number,) = layout.unpack(value)
    return NONSENSE if number in ALL_ONES else float(number)
