"""The arguments of NVML's functions, described by words, so that calls can be simulated, recorded and replayed.

Words that describe one C argument:
`handle`: a handle that is input. `out handle`: a handle that is output.
`u4`, `i4`, `u8`: a number that is input, with its type and size in bytes. `string`: a text that is input.
`out <layout>`: numbers that are output, in a layout of the struct module.
`struct <size> <inputs>`: a struct of `size` bytes, of which the first `inputs` bytes are input, the others output.
`versioned <inputs>`: the same, but the struct begins with its size and version, so that no size is given.
`object`: a pointer that is not recorded, such as an event set or GPM sample, which is valid in one process only.
`since`: a time that is input. It is not recorded, because calls with different times are the same query.

Words that describe two C arguments:
`text`: buffer and length. `list <size>`: count, and array of entries of `size` bytes. `array <size>`: array and count.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpumon_sim.cmemory import put, put_list, put_text, take
from gpumon_sim.codes import Code, Refusal
from gpumon_sim.layouts import POINTER, UINT

Words = tuple[str, ...]
Name = Callable[[int | None], str]
"""Function that returns the name under which a handle is recorded."""


class _Argument:
    """Base of the classes that read and write the C arguments that one word of a signature describes.

    `inputs` and `outputs` yield JSON values from a call. `put` writes recorded outputs into the caller's memory. The
    methods of this class are those of an argument that is not recorded.
    """

    c: tuple[Any, ...] = (ctypes.c_void_p,)

    def inputs(self, _arguments: Sequence[Any], _name: Name) -> Iterator[Any]:
        yield from ()

    def outputs(self, _arguments: Sequence[Any], _name: Name) -> Iterator[Any]:
        yield from ()

    def put(self, _arguments: Sequence[Any], _outputs: Iterator[Any], _handle: Callable[[str], int]) -> None:
        return


class _Number(_Argument):
    def __init__(self, c: Any) -> None:
        self.c = (c,)

    def inputs(self, arguments: Sequence[Any], _name: Name) -> Iterator[Any]:
        yield arguments[0]


class _Handle(_Argument):
    def inputs(self, arguments: Sequence[Any], name: Name) -> Iterator[Any]:
        yield name(arguments[0])


class _String(_Argument):
    c = (ctypes.c_char_p,)

    def inputs(self, arguments: Sequence[Any], _name: Name) -> Iterator[Any]:
        yield (arguments[0] or b"").decode(errors="replace")


class _Out(_Argument):
    def __init__(self, layout: str) -> None:
        self._layout = struct.Struct("<" + layout)

    def outputs(self, arguments: Sequence[Any], _name: Name) -> Iterator[Any]:
        yield from take(arguments[0], self._layout)

    def put(self, arguments: Sequence[Any], outputs: Iterator[Any], _handle: Callable[[str], int]) -> None:
        put(arguments[0], self._layout, *(next(outputs) for _ in range(len(self._layout.format) - 1)))


class _OutHandle(_Argument):
    def outputs(self, arguments: Sequence[Any], name: Name) -> Iterator[Any]:
        yield name(*take(arguments[0], POINTER))

    def put(self, arguments: Sequence[Any], outputs: Iterator[Any], handle: Callable[[str], int]) -> None:
        put(arguments[0], POINTER, handle(next(outputs)))


class _Text(_Argument):
    c = (ctypes.c_void_p, ctypes.c_uint)

    def outputs(self, arguments: Sequence[Any], _name: Name) -> Iterator[Any]:
        buffer, length = arguments
        yield ctypes.string_at(buffer, length).partition(b"\0")[0].decode(errors="replace")

    def put(self, arguments: Sequence[Any], outputs: Iterator[Any], _handle: Callable[[str], int]) -> None:
        buffer, length = arguments
        put_text(buffer, length, next(outputs))


class _Struct(_Argument):
    def __init__(self, size: int, inputs: int) -> None:
        self._size = size
        self._inputs = inputs

    def _bytes(self, address: int | None) -> bytes:
        if not address:
            raise Refusal(Code.INVALID_ARGUMENT)
        return ctypes.string_at(address, self._size)

    def inputs(self, arguments: Sequence[Any], _name: Name) -> Iterator[Any]:
        if self._inputs:
            (inputs,) = take(arguments[0], struct.Struct(f"{self._inputs}s"))
            yield inputs.hex()

    def outputs(self, arguments: Sequence[Any], _name: Name) -> Iterator[Any]:
        yield self._bytes(arguments[0])[self._inputs :].hex()

    def put(self, arguments: Sequence[Any], outputs: Iterator[Any], _handle: Callable[[str], int]) -> None:
        written = bytes.fromhex(next(outputs))[: len(self._bytes(arguments[0])) - self._inputs]
        put((arguments[0] or 0) + self._inputs, struct.Struct(f"{len(written)}s"), written)


class _Versioned(_Struct):
    def __init__(self, inputs: int) -> None:
        super().__init__(0, inputs)

    def _bytes(self, address: int | None) -> bytes:
        (version,) = take(address, UINT)
        return ctypes.string_at(address or 0, max(version & 0xFFFFFF, self._inputs))


class _List(_Argument):
    c = (ctypes.c_void_p, ctypes.c_void_p)

    def __init__(self, size: int) -> None:
        self._entry = struct.Struct(f"{size}s")

    def outputs(self, arguments: Sequence[Any], _name: Name) -> Iterator[Any]:
        (count,) = take(arguments[0], UINT)
        written = ctypes.string_at(arguments[1], count * self._entry.size) if count else b""
        yield [entry.hex() for (entry,) in self._entry.iter_unpack(written)]

    def put(self, arguments: Sequence[Any], outputs: Iterator[Any], _handle: Callable[[str], int]) -> None:
        size, array = arguments
        put_list(size, array, self._entry, [(bytes.fromhex(entry),) for entry in next(outputs)])


class _Array(_List):
    def outputs(self, arguments: Sequence[Any], name: Name) -> Iterator[Any]:
        yield from super().outputs(arguments[::-1], name)

    def put(self, arguments: Sequence[Any], outputs: Iterator[Any], handle: Callable[[str], int]) -> None:
        super().put(arguments[::-1], outputs, handle)


class _Since(_Argument):
    c = (ctypes.c_ulonglong,)


_PLAIN: dict[str, Callable[[], _Argument]] = {
    "object": _Argument,
    "handle": _Handle,
    "string": _String,
    "text": _Text,
    "since": _Since,
    "out handle": _OutHandle,
    "u4": lambda: _Number(ctypes.c_uint),
    "i4": lambda: _Number(ctypes.c_int),
    "u8": lambda: _Number(ctypes.c_ulonglong),
}
_SIZED: dict[str, Callable[..., _Argument]] = {
    "struct": _Struct,
    "versioned": _Versioned,
    "list": _List,
    "array": _Array,
}


def _argument(word: str) -> _Argument:
    if word in _PLAIN:
        return _PLAIN[word]()
    kind, *rest = word.split()
    return _Out(*rest) if kind == "out" else _SIZED[kind](*map(int, rest))


class Signature:
    """The arguments of an NVML function: reads a call's inputs and outputs, and writes the outputs of a replayed call.

    Inputs and outputs are flat sequences of numbers, texts, and lists of texts.
    """

    def __init__(self, words: Words) -> None:
        """Parse the words, which the docstring of this module lists.

        Raise ValueError, KeyError, TypeError or struct.error if a word is invalid.
        """
        self.words = words
        self._arguments: list[tuple[_Argument, slice]] = []
        self.c_types: list[Any] = []
        for argument in map(_argument, words):
            self._arguments.append((argument, slice(len(self.c_types), len(self.c_types) + len(argument.c))))
            self.c_types += argument.c

    def inputs(self, arguments: Sequence[Any], name: Name) -> tuple[Any, ...]:
        """Return a call's inputs as JSON values. `name` returns the name of a handle. Raise Refusal for NULL."""
        return tuple(item for argument, at in self._arguments for item in argument.inputs(arguments[at], name))

    def outputs(self, arguments: Sequence[Any], name: Name) -> tuple[Any, ...]:
        """Return the outputs of a successful call as JSON values. `name` returns the name of a handle."""
        return tuple(item for argument, at in self._arguments for item in argument.outputs(arguments[at], name))

    def put(self, arguments: Sequence[Any], outputs: Sequence[Any], handle: Callable[[str], int]) -> None:
        """Write recorded outputs into the caller's memory. Raise Refusal for NULL and for a buffer that is too small.

        `handle` returns the handle with a given name.
        """
        rest = iter(outputs)
        for argument, at in self._arguments:
            argument.put(arguments[at], rest, handle)
