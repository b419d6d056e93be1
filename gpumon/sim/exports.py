"""What the simulated library exports: a function is written once, and added by its decorator.

Functions get the node first, a getter the device that its handle stands for, then C's arguments: integers, and
addresses (None for NULL). They answer None for success or raise Refusal.
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
    """One function of the library."""

    name: str
    function: Callable[..., Any]
    takes: tuple[Any, ...]
    """C types of the arguments."""
    gives: Any = ctypes.c_int
    since: Version = ()
    """First driver version that has it."""
    arguments: tuple[str, ...] | None = None
    """In the words of signatures, where the decorator knows them."""


EXPORTS: dict[str, Export] = {}


def function(name: str, *takes: Any, gives: Any = ctypes.c_int, since: Version = ()) -> Callable[[Any], Any]:
    """Export a function that concerns no single GPU: `f(node, *arguments)`."""

    def export(written: Callable[..., Any]) -> Callable[..., Any]:
        EXPORTS[name] = Export(name, written, takes, gives, since)
        return written

    return export


class Devices(Protocol):
    """What knows the devices that handles stand for: the node."""

    def device(self, function: str, handle: int | None, *, parts: bool) -> Any: ...


def device_function(
    name: str, *takes: Any, since: Version = (), parts: bool = False, arguments: tuple[str, ...] | None = None
) -> Callable[[Any], Any]:
    """Export a function whose first argument is a device handle: `f(device, *arguments)`.

    With `parts`, the handle of a MIG device will do; to any other function it is an invalid argument.
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
    """Export a getter that answers numbers: `f(device, *arguments) -> number, tuple of numbers, or None`.

    One layout (of the struct module) for each pointer that the caller hands in; None is "not supported".
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
    """Export a getter that answers a text into a buffer of bounded length: `f(device) -> str`."""

    def export(written: Callable[[Any], str]) -> Callable[[Any], str]:
        def answer(device: Any, buffer: int | None, length: int) -> None:
            put_text(buffer, length, written(device))

        device_function(name, POINTER, UINT, parts=parts, arguments=("handle", "text"))(answer)
        return written

    return export
