"""TABLE: the arguments of NVML's functions, described by words, so that calls can be recorded and replayed.

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
from functools import cache
from typing import Any

from gpumon.sim.cmemory import put, put_text, take
from gpumon.sim.codes import Code, Refusal
from gpumon.sim.exports import POINTER, UINT, ULONGLONG
from gpumon.sim.library import exports

Words = tuple[str, ...]
Name = Callable[[int | None], str]
"""Function that returns the name under which a handle is recorded."""

SIGNATURES: dict[str, Words] = {
    "nvmlInitWithFlags": ("u4",),
    "nvmlInit_v2": (),
    "nvmlShutdown": (),
    "nvmlSystemGetDriverVersion": ("text",),
    "nvmlSystemGetNVMLVersion": ("text",),
    "nvmlSystemGetCudaDriverVersion": ("out i",),
    "nvmlSystemGetCudaDriverVersion_v2": ("out i",),
    "nvmlDeviceGetCount_v2": ("out I",),
    "nvmlDeviceGetHandleByIndex_v2": ("u4", "out handle"),
    "nvmlDeviceGetHandleByPciBusId_v2": ("string", "out handle"),
    "nvmlDeviceGetHandleByUUID": ("string", "out handle"),
    "nvmlDeviceGetIndex": ("handle", "out I"),
    "nvmlDeviceGetP2PStatus": ("handle", "handle", "i4", "out i"),
    "nvmlDeviceGetGspFirmwareVersion": ("handle", "struct 64 0"),  # a text without a length argument
    "nvmlDeviceGetPciInfo_v3": ("handle", "struct 68 0"),
    "nvmlDeviceGetMemoryInfo_v2": ("handle", "versioned 4"),
    "nvmlDeviceGetTemperatureV": ("handle", "versioned 8"),
    "nvmlDeviceGetMarginTemperature": ("handle", "versioned 4"),
    "nvmlDeviceGetPciInfoExt": ("handle", "versioned 4"),
    "nvmlDeviceGetSramEccErrorStatus": ("handle", "versioned 4"),
    "nvmlDeviceGetGridLicensableFeatures_v4": ("handle", "struct 860 0"),
    "nvmlDeviceGetPlatformInfo": ("handle", "versioned 4"),
    "nvmlDeviceGetGpuFabricInfo": ("handle", "struct 28 0"),
    "nvmlDeviceGetGpuFabricInfoV": ("handle", "versioned 4"),
    "nvmlDeviceGetNvLinkRemoteDeviceType": ("handle", "u4", "out i"),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": ("handle", "u4", "struct 68 0"),
    "nvmlDeviceGetC2cModeInfoV": ("handle", "out I"),
    "nvmlDeviceGetVirtualizationMode": ("handle", "out i"),
    "nvmlDeviceValidateInforom": ("handle",),
    "nvmlDeviceGetRetiredPages": ("handle", "u4", "list 8"),
    "nvmlDeviceGetMigDeviceHandleByIndex": ("handle", "u4", "out handle"),
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": ("handle", "out handle"),
    "nvmlDeviceGetComputeRunningProcesses_v2": ("handle", "list 24"),
    "nvmlDeviceGetComputeRunningProcesses_v3": ("handle", "list 24"),
    "nvmlDeviceGetGraphicsRunningProcesses_v2": ("handle", "list 24"),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": ("handle", "list 24"),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": ("handle", "list 24"),
    "nvmlDeviceGetProcessUtilization": ("handle", "array 32", "since"),
    "nvmlSystemGetConfComputeState": ("out III",),
    "nvmlDeviceGetFieldValues": ("handle", "i4", "object"),
    "nvmlDeviceRegisterEvents": ("handle", "u8", "object"),
    "nvmlEventSetCreate": ("object",),
    "nvmlEventSetFree": ("object",),
    "nvmlEventSetWait_v2": ("object", "object", "u4"),
    "nvmlGpmQueryDeviceSupport": ("handle", "struct 8 4"),
    "nvmlGpmSampleAlloc": ("object",),
    "nvmlGpmSampleFree": ("object",),
    "nvmlGpmSampleGet": ("handle", "object"),
    "nvmlGpmMigSampleGet": ("handle", "u4", "object"),
    "nvmlGpmMetricsGet": ("object",),
}
"""Words for the arguments of functions that the decorators `getter` and `text_getter` of exports.py do not describe."""

WITHOUT = frozenset(
    {
        "nvmlErrorString",  # does not depend on the node
        "nvmlSystemGetProcessName",  # names processes
        "nvmlDeviceGetSamples",  # returns samples from before the call
        "nvmlDeviceGetRunningProcessDetailList",  # points to another struct; RunningProcesses has the same data
    }
)
"""Functions whose calls are not recorded. A replayed library lacks these functions, except nvmlErrorString."""


def words(function: str) -> Words | None:
    """Return the argument words (see the module's docstring) of an NVML function; None if none are defined for it."""
    export = exports().get(function)
    argument_words = export.arguments if export is not None else None
    return argument_words if argument_words is not None else SIGNATURES.get(function)


class _Argument:
    """Base of the classes that read and write the C arguments that one word of a signature describes.

    `inputs` and `outputs` yield JSON values from a call. `put` writes recorded outputs into the caller's memory.
    """

    c: tuple[Any, ...] = (POINTER,)

    def inputs(self, _arguments: Sequence[Any], _name: Name) -> Iterator[Any]:
        yield from ()

    def outputs(self, _arguments: Sequence[Any], _name: Name) -> Iterator[Any]:
        yield from ()

    def put(self, _arguments: Sequence[Any], _outputs: Iterator[Any], _handle: Callable[[str], int]) -> None:
        return


class _Object(_Argument):
    pass


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
    _layout = struct.Struct("<Q")

    def outputs(self, arguments: Sequence[Any], name: Name) -> Iterator[Any]:
        yield name(*take(arguments[0], self._layout))

    def put(self, arguments: Sequence[Any], outputs: Iterator[Any], handle: Callable[[str], int]) -> None:
        put(arguments[0], self._layout, handle(next(outputs)))


class _Text(_Argument):
    c = (POINTER, UINT)

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
        (version,) = take(address, struct.Struct("<I"))
        return ctypes.string_at(address or 0, max(version & 0xFFFFFF, self._inputs))


class _List(_Argument):
    c = (POINTER, POINTER)
    _count = struct.Struct("<I")

    def __init__(self, size: int) -> None:
        self._entry = struct.Struct(f"{size}s")

    def outputs(self, arguments: Sequence[Any], _name: Name) -> Iterator[Any]:
        (count,) = take(arguments[0], self._count)
        written = ctypes.string_at(arguments[1], count * self._entry.size) if count else b""
        yield [entry.hex() for (entry,) in self._entry.iter_unpack(written)]

    def put(self, arguments: Sequence[Any], outputs: Iterator[Any], _handle: Callable[[str], int]) -> None:
        entries = [bytes.fromhex(entry) for entry in next(outputs)]
        (room,) = take(arguments[0], self._count)
        put(arguments[0], self._count, len(entries))
        if len(entries) > room:
            raise Refusal(Code.INSUFFICIENT_SIZE)
        for n, entry in enumerate(entries):
            put((arguments[1] or 0) + n * self._entry.size, self._entry, entry)


class _Array(_List):
    def outputs(self, arguments: Sequence[Any], name: Name) -> Iterator[Any]:
        yield from super().outputs(arguments[::-1], name)

    def put(self, arguments: Sequence[Any], outputs: Iterator[Any], handle: Callable[[str], int]) -> None:
        super().put(arguments[::-1], outputs, handle)


class _Since(_Argument):
    c = (ULONGLONG,)


_PLAIN: dict[str, Callable[[], _Argument]] = {
    "object": _Object,
    "handle": _Handle,
    "string": _String,
    "text": _Text,
    "since": _Since,
    "out handle": _OutHandle,
    "u4": lambda: _Number(UINT),
    "i4": lambda: _Number(ctypes.c_int),
    "u8": lambda: _Number(ULONGLONG),
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


@cache
def signature(function: str) -> Signature | None:
    """Return the parsed signature of a function; None if no words are defined for the function."""
    argument_words = words(function)
    return None if argument_words is None else Signature(argument_words)
