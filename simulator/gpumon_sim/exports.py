"""Decorators that export Python functions as C functions of the simulated NVML library.

The first argument of the Python function is the simulated node, or the device that the C function's handle addresses.
The C arguments follow: integers, and addresses (None for NULL). The decorators describe them by words, which
signatures.py defines. The function returns None for success or raises Refusal; a getter returns the values that are
written to the caller's memory; with `gives`, it returns the C result.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpumon_sim.cmemory import put, put_text, whole
from gpumon_sim.codes import Code, Refusal

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Export:
    """One C function of the simulated NVML library, and the Python function that implements it."""

    function: Callable[..., Any]
    words: tuple[str, ...]
    """Words that describe the C arguments, as defined in signatures.py."""
    gives: Any = ctypes.c_int
    since: Version = ()
    """First driver version that has the function; () if all simulated versions have it."""


EXPORTS: dict[str, Export] = {}


def function(name: str, *words: str, gives: Any = ctypes.c_int) -> Callable[[Any], Any]:
    """Return a decorator that exports `f(node, *arguments)` as the C function `name`.

    `words` describe the C arguments, `gives` is the C type of the result.
    """

    def export(written: Callable[..., Any]) -> Callable[..., Any]:
        EXPORTS[name] = Export(written, words, gives)
        return written

    return export


def node_function(name: str, *words: str) -> Callable[[Any], Any]:
    """Return a decorator that exports `f(node, *arguments)` as a C function without a device argument.

    It begins each call with `enter` of SimNode.
    """

    def export(written: Callable[..., None]) -> Callable[..., None]:
        def enter(node: Any, *arguments: Any) -> None:
            node.enter(name)
            written(node, *arguments)

        EXPORTS[name] = Export(enter, words)
        return written

    return export


def device_function(name: str, *words: str, since: Version = (), parts: bool = False) -> Callable[[Any], Any]:
    """Return a decorator that exports `f(device, *arguments)` as a C function whose first argument is a device handle.

    It begins each call with `device` of SimNode, which resolves the handle. If `parts` is true, the C function accepts
    handles of MIG devices too, otherwise it returns INVALID_ARGUMENT for them. `words` describe the arguments after the
    handle. `since`: see Export.
    """

    def export(written: Callable[..., None]) -> Callable[..., None]:
        def enter(node: Any, handle: int | None, *arguments: Any) -> None:
            written(node.device(name, handle, parts=parts), *arguments)

        EXPORTS[name] = Export(enter, ("handle", *words), since=since)
        return written

    return export


def getter(
    name: str, *layouts: str, takes: Sequence[str] = (), since: Version = (), parts: bool = False
) -> Callable[[Any], Any]:
    """Return a decorator that exports a getter: `f(device, *arguments)` returns a number, a tuple of numbers, or None.

    Each of `layouts` is the struct layout of one output pointer; the numbers fill the outputs in order. If a number is
    None, the call returns NOT_SUPPORTED. `takes` are the words for the inputs after the handle. The other parameters
    are those of `device_function`.
    """
    packed = [(struct.Struct("<" + layout), layout) for layout in layouts]
    words = (*takes, *(f"out {layout}" for layout in layouts))

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

        device_function(name, *words, since=since, parts=parts)(answer)
        return written

    return export


def text_getter(name: str, *, parts: bool = False) -> Callable[[Any], Any]:
    """Return a decorator that exports a getter of a text: `f(device) -> str`.

    The C function writes the text into the caller's buffer. `name` and `parts`: see `device_function`.
    """

    def export(written: Callable[[Any], str]) -> Callable[[Any], str]:
        def answer(device: Any, buffer: int | None, length: int) -> None:
            put_text(buffer, length, written(device))

        device_function(name, "text", parts=parts)(answer)
        return written

    return export
