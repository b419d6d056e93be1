"""Reads and writes the memory of NVML's caller by address, as a C library does."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from typing import Any

from gpumon_sim.codes import Code, Refusal
from gpumon_sim.layouts import UINT

_RANGES = {
    letter: (-(1 << bits - 1), (1 << bits - 1) - 1) if letter.islower() else (0, (1 << bits) - 1)
    for letter, bits in ((letter, 8 * struct.calcsize("<" + letter)) for letter in "BHiIqQ")
}
"""Minimum and maximum of an integer type, by its format character in the struct module. Lower case is signed."""


def put(address: int | None, layout: struct.Struct, *values: Any) -> None:
    """Write `values` as a struct to an address. Raise Refusal (INVALID_ARGUMENT) for NULL.

    Any other invalid address crashes the process, as in C.
    """
    ctypes.memmove(_check_address(address), layout.pack(*values), layout.size)


def take(address: int | None, layout: struct.Struct) -> tuple[Any, ...]:
    """Read a struct from an address. Raise Refusal (INVALID_ARGUMENT) for NULL."""
    return layout.unpack(ctypes.string_at(_check_address(address), layout.size))


def whole(number: float, letter: str) -> int:
    """Round a number to the integer type with the struct module's format character `letter`.

    A number outside the type's range wraps around. For NaN and infinity, return the integer of which only the
    highest bit is set.
    """
    low, high = _RANGES[letter]
    if low <= number <= high:
        return round(number)
    if not math.isfinite(number):
        return low or high // 2 + 1
    return (round(number) - low) % (high - low + 1) + low


def put_text(buffer: int | None, length: int, text: str) -> None:
    """Write a NUL-terminated text into a buffer of `length` bytes.

    Raise Refusal (INSUFFICIENT_SIZE) if the text does not fit, and Refusal (INVALID_ARGUMENT) for NULL.
    """
    encoded = text.encode() + b"\0"
    if len(encoded) > length:
        raise Refusal(Code.INSUFFICIENT_SIZE)
    ctypes.memmove(_check_address(buffer), encoded, len(encoded))


def put_list(size: int | None, array: int | None, layout: struct.Struct, rows: Sequence[Sequence[Any]]) -> None:
    """Write the number of rows to the address `size`, and each row as a struct into the caller's array.

    Before the call, the number at `size` is the array's number of entries. Raise Refusal (INSUFFICIENT_SIZE), with the
    number of rows written, if the array is too small.
    """
    (room,) = take(size, UINT)
    put(size, UINT, len(rows))
    if len(rows) > room:
        raise Refusal(Code.INSUFFICIENT_SIZE)
    for n, row in enumerate(rows):
        put((array or 0) + n * layout.size, layout, *row)


def check_version(address: int | None, number: int, size: int) -> None:
    """Raise Refusal (ARGUMENT_VERSION_MISMATCH) unless the struct at `address` has the version `number` and `size`."""
    if take(address, UINT) != (size | number << 24,):
        raise Refusal(Code.ARGUMENT_VERSION_MISMATCH)


def _check_address(address: int | None) -> int:
    if not address:
        raise Refusal(Code.INVALID_ARGUMENT)
    return address
