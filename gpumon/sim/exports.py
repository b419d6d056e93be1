"""Decorators that export Python functions as C functions of the simulated NVML library.

The first argument of the Python function is the simulated node, or the device that the C function's handle addresses.
The C arguments follow: integers, and addresses (None for NULL). The function returns None for success or raises
Refusal; a getter returns the values that are written to the caller's memory; with `gives`, it returns the C result.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpumon.sim.cmemory import put, put_text, whole
from gpumon.sim.codes import Code, Refusal

Version = tuple[int, ...]
POINTER = ctypes.c_void_p
UINT = ctypes.c_uint
ULONGLONG = ctypes.c_ulonglong
_NUMBERS = {UINT: "u4", ctypes.c_int: "i4", ULONGLONG: "u8"}


@dataclass(frozen=True, slots=True)
class Export:
    """One C function of the simulated NVML library: its C types, and the Python function that implements it."""

    name: str
    function: Callable[..., Any]
    takes: tuple[Any, ...]
    """C types of the arguments."""
    gives: Any = ctypes.c_int
    since: Version = ()
    """First driver version that has the function; () if all simulated versions have it."""
    arguments: tuple[str, ...] | None = None
    """Words that describe the arguments, as defined in signatures.py; None to look them up in SIGNATURES there."""


EXPORTS: dict[str, Export] = {}


def function(name: str, *takes: Any, gives: Any = ctypes.c_int, since: Version = ()) -> Callable[[Any], Any]:
    """Return a decorator that exports `f(node, *arguments)` as the C function `name`.

    `takes` are the C types of the arguments after the node, `gives` is the C type of the result. `since` is the first
    driver version that has the function.
    """

    def export(written: Callable[..., Any]) -> Callable[..., Any]:
        EXPORTS[name] = Export(name, written, takes, gives, since)
        return written

    return export


class Devices(Protocol):
    """Protocol of the part of SimNode that device functions use: `device` resolves a handle to a GPU or MIG device."""

    def device(self, function: str, handle: int | None, *, parts: bool) -> Any: ...


def device_function(
    name: str, *takes: Any, since: Version = (), parts: bool = False, arguments: tuple[str, ...] | None = None
) -> Callable[[Any], Any]:
    """Return a decorator that exports `f(device, *arguments)` as a C function whose first argument is a device handle.

    If `parts` is true, the C function accepts handles of MIG devices too, otherwise it returns INVALID_ARGUMENT for
    them. `takes` are the C types of the arguments after the handle. `since` and `arguments`: see Export.
    """

    def export(written: Callable[..., None]) -> Callable[..., None]:
        def enter(node: Devices, handle: int | None, *arguments: Any) -> None:
            written(node.device(name, handle, parts=parts), *arguments)

        EXPORTS[name] = Export(name, enter, (POINTER, *takes), since=since, arguments=arguments)
        return written

    return export


def getter(
    name: str, *layouts: str, takes: Sequence[Any] = (), since: Version = (), parts: bool = False
) -> Callable[[Any], Any]:
    """Return a decorator that exports a getter: `f(device, *arguments)` returns a number, a tuple of numbers, or None.

    Each of `layouts` is the struct layout of one output pointer; the numbers fill the outputs in order. If a number is
    None, the call returns NOT_SUPPORTED. `takes` are the C types of the inputs after the handle. The other parameters
    are those of `device_function`.
    """
    packed = [(struct.Struct("<" + layout), layout) for layout in layouts]
    arguments = ("handle", *(_NUMBERS[kind] for kind in takes), *(f"out {layout}" for layout in layouts))

    def export(written: Callable[..., Any]) -> Callable[..., Any]:
        def answer(device: Any, *arguments: Any) -> None:
            inputs, pointers = arguments[: len(takes)], arguments[len(takes) :]
            value = written(device, *inputs)
            numbers = list(value) if isinstance(value, tuple) else [value]
            if None in numbers:
                raise Refusal(Code.NOT_SUPPORTED)
            for pointer, (layout, letters) in zip(pointers, packed, strict=True):
                put(pointer, layout, *map(whole, numbers, letters))
                del numbers[: len(letters)]

        export = device_function(name, *takes, *[POINTER] * len(layouts), since=since, parts=parts, arguments=arguments)
        export(answer)
        return written

    return export


def text_getter(name: str, *, parts: bool = False) -> Callable[[Any], Any]:
    """Return a decorator that exports a getter of a text: `f(device) -> str`.

    The C function writes the text into the caller's buffer. `name` and `parts`: see `device_function`.
    """

    def export(written: Callable[[Any], str]) -> Callable[[Any], str]:
        def answer(device: Any, buffer: int | None, length: int) -> None:
            put_text(buffer, length, written(device))

        device_function(name, POINTER, UINT, parts=parts, arguments=("handle", "text"))(answer)
        return written

    return export
