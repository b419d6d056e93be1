"""Test functions in front of the simulated library, for answers that a scenario cannot give."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any

import pynvml
from gpumon_sim.pointers import Function

_callbacks: list[Any] = []
"""The callbacks are kept alive, because an address does not keep its callback."""

ENTRY = struct.Struct("<IIqqIi8s")  # nvmlFieldValue_t: number, scope, timestamp, latency, type, return code, value


class Overlay:
    """The replacement of `pynvml.nvmlLib`; functions that it lacks come from the simulated library."""

    def __init__(self, below: Any, functions: Mapping[str, Any]) -> None:
        self._below = below
        self._functions = functions

    def __getattr__(self, name: str) -> Any:
        return self._functions.get(name) or getattr(self._below, name)


@contextmanager
def overlaid(functions: Mapping[str, Any]) -> Iterator[None]:
    """Put these C functions, by name, in front of the library. A Python function gets integers and addresses."""
    below = pynvml.nvmlLib
    made = {
        name: wrap(function) if not isinstance(function, Function) else function for name, function in functions.items()
    }
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = Overlay(below, made)
    try:
        yield
    finally:
        pynvml.nvmlLib = below
        pynvml._nvmlGetFunctionPointer_cache.clear()


def wrap(function: Callable[..., int]) -> Function:
    """A C function without argument conversion or checks, as ctypes returns it for a library."""
    callback = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * len(signature(function).parameters))(function)
    _callbacks.append(callback)
    return Function(ctypes.cast(callback, ctypes.c_void_p).value or 0)


def answering(change: Callable[[int, int], tuple[int, int, int, bytes] | None]) -> Any:
    """A batch of fields as simulated, except where `change` replaces a number and scope.

    It returns None to leave a field alone, or its timestamp, type, return code and value.
    """
    simulated = pynvml.nvmlLib.nvmlDeviceGetFieldValues

    def field_values(handle: int, count: int, address: int) -> int:
        code = int(simulated(ctypes.c_void_p(handle), ctypes.c_int(count), ctypes.c_void_p(address)))
        for at in range(count):
            where = address + at * ENTRY.size
            number, scope, _, latency, *_ = ENTRY.unpack(ctypes.string_at(where, ENTRY.size))
            changed = change(number, scope)
            if changed is not None:
                timestamp, kind, result, value = changed
                ctypes.memmove(where, ENTRY.pack(number, scope, timestamp, latency, kind, result, value), ENTRY.size)
        return code

    return wrap(field_values)
