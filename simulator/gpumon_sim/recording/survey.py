"""Makes additional NVML calls for a recording: those of other clients, and some that answer open questions about NVML.

It calls the C functions directly, by their signatures. The call recorder, which replaces pynvml's library object,
records the answers.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product
from typing import Any

from gpumon.collectors.nvml.fields import field_ids
from gpumon.collectors.nvml.library import Library, NvmlError
from gpumon_sim.layouts import FIELD_VALUE
from gpumon_sim.library import DESCRIBED, signature
from gpumon_sim.recording.call_recorder import CallRecorder

Values = tuple[Any, ...]

MORE = 4
"""Number of spare entries in the buffer for a list, because a list may grow after the call for its size."""
ROOM = 96
"""Size of a text buffer in bytes: the largest buffer size that NVML's header defines."""

NODE = (
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
    "nvmlSystemGetCudaDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetCount_v2",
)


def versioned_struct(size: int, number: int, *rest: int) -> Values:
    """Return a tuple of one input, the first bytes of a versioned struct: `size`, version `number`, then `rest`."""
    return (struct.pack(f"<{1 + len(rest)}I", size | number << 24, *rest),)


WITH_INPUT: Mapping[str, Sequence[Values]] = {
    "nvmlDeviceGetClockInfo": [(domain,) for domain in range(4)],
    "nvmlDeviceGetMaxClockInfo": [(domain,) for domain in range(4)],
    "nvmlDeviceGetTemperature": [(0,)],
    "nvmlDeviceGetTemperatureThreshold": [(threshold,) for threshold in range(8)],
    "nvmlDeviceGetTemperatureV": [versioned_struct(12, 1, 0)],
    "nvmlDeviceGetMarginTemperature": [versioned_struct(8, 1)],
    "nvmlDeviceGetMemoryInfo_v2": [versioned_struct(40, 2)],
    "nvmlDeviceGetPcieThroughput": [(0,), (1,)],
    "nvmlDeviceGetFanSpeed_v2": [(0,)],
    "nvmlDeviceGetRetiredPages": [(0,), (1,)],
    "nvmlDeviceGetTotalEccErrors": list(product(range(2), range(2))),
    "nvmlDeviceGetMemoryErrorCounter": list(product(range(2), range(2), range(8))),
    "nvmlGpmQueryDeviceSupport": [(struct.pack("<I", 1),)],
}
"""Inputs after the handle, by function. The function is called for each GPU with each of these inputs."""

OF_LINKS = (
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkVersion",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
)
PEER_CAPABILITIES = range(5)
"""NVML's peer access capabilities: read, write, NVLink, atomic operations, PCIe."""
ANSWERS = frozenset({"out", "text", "list", "array", "since", "struct"})
"""Kinds of arguments (first word in signatures.py) for which a call needs no input value from this module."""
LINK_COUNT = "NVLINK_LINK_COUNT"

EVERY_FIELD = tuple(range(1, 32)), tuple(range(32, 321))
"""Field ids 1 to 320, which include all fields of current drivers, in two batches: ECC and retired pages, then the
others. The meaning and support of an id differ between drivers.
"""
ALL_LINKS = 0xFFFFFFFF


def survey(library: Library, recorder: CallRecorder, driver: str, bus_ids: Sequence[str]) -> None:
    """Make the additional calls for the node, each GPU and each pair of GPUs. Failing calls are recorded too.

    `driver` is the driver version. The parent process kills this process if a call hangs.
    """
    for function in NODE:
        ask(library, function, ())
    handles: dict[str, int] = {}
    for bus_id in bus_ids:
        handle = _open(library, bus_id)
        if handle is not None:
            handles[bus_id] = handle
            _gpu(library, recorder, handle, bus_id, field_ids(driver))
    for (bus_id, handle), other in permutations(handles.items(), 2):
        for capability in PEER_CAPABILITIES:
            ask(library, "nvmlDeviceGetP2PStatus", (handle, other[1], capability), bus_id)
    for index in range(len(bus_ids)):
        ask(library, "nvmlDeviceGetHandleByIndex_v2", (index,))


def _open(library: Library, bus_id: str) -> int | None:
    """Look up a GPU by bus id, as a poll does. Return the handle; None if the lookup fails.

    The first lookup of a GPU may take long, because the driver then initialises the GPU.
    """
    try:
        handle = library.call("nvmlDeviceGetHandleByPciBusId", bus_id.encode(), bus_id=bus_id)
    except NvmlError:
        return None
    return ctypes.cast(handle, ctypes.c_void_p).value


def _gpu(library: Library, recorder: CallRecorder, handle: int, bus_id: str, ids: Mapping[str, int]) -> None:
    for function, values in _questions():
        ask(library, function, (handle, *values), bus_id)
    uuid = ask(library, "nvmlDeviceGetUUID", (handle,), bus_id)
    if uuid:
        ask(library, "nvmlDeviceGetHandleByUUID", (uuid[-1],), bus_id)
    for numbers in EVERY_FIELD:
        fields(library, handle, [(number, 0) for number in numbers], bus_id)
    _links(library, handle, bus_id, ids)
    _migs(library, handle, bus_id)
    with recorder.suspend():
        recorder.record_finding(
            "ECC and NVLink fields in one batch", bus_id, _mixed_batches(library, handle, bus_id, ids)
        )


def _questions() -> Iterator[tuple[str, Values]]:
    """Yield (function, inputs after the handle) for each getter that needs only a handle or is in WITH_INPUT."""
    for function in sorted(DESCRIBED):
        described = signature(function)
        if described is None or described.words[:1] != ("handle",):
            continue
        if function.startswith(("nvmlDeviceGet", "nvmlDeviceIs")) and all(
            word.split()[0] in ANSWERS for word in described.words[1:]
        ):
            yield function, ()
        yield from ((function, values) for values in WITH_INPUT.get(function, ()))


def _links(library: Library, handle: int, bus_id: str, numbers: Mapping[str, int]) -> None:
    """Call the functions in OF_LINKS and read all NVLink fields, for each link and for the number after the last link.

    No link has the latter number; drivers differ in their answer. Also read the fields with the scope ALL_LINKS.
    """
    of_links = [number for name, number in numbers.items() if name.startswith("NVLINK_") and name != LINK_COUNT]
    [(code, count)] = fields(library, handle, ((numbers[LINK_COUNT], 0),), bus_id) or [(1, 0)]
    links = range(count + 1 if not code else 1)
    for link in links:
        for function in OF_LINKS:
            ask(library, function, (handle, link), bus_id)
        fields(library, handle, [(number, link) for number in of_links], bus_id)
    fields(library, handle, [(number, ALL_LINKS) for number in of_links], bus_id)


def _mixed_batches(library: Library, handle: int, bus_id: str, numbers: Mapping[str, int]) -> str:
    """Return a text with the numbers of ECC and NVLink fields that succeed in separate batches and in one batch.

    Blackwell reportedly refuses ECC fields in a batch with NVLink counters.
    """
    ecc = [(number, 0) for name, number in numbers.items() if name.startswith("ECC_")]
    links = [(number, ALL_LINKS) for name, number in numbers.items() if name.startswith("NVLINK_COUNT_")]
    apart = (fields(library, handle, ecc, bus_id) or []) + (fields(library, handle, links, bus_id) or [])
    mixed = fields(library, handle, ecc + links, bus_id) or []
    answered, together = (sum(not code for code, _ in batch) for batch in (apart, mixed))
    return f"of {len(apart)} ECC and NVLink fields {answered} answer apart, {together} in one batch"


def _migs(library: Library, handle: int, bus_id: str) -> None:
    max_count = ask(library, "nvmlDeviceGetMaxMigDeviceCount", (handle,), bus_id)
    for n in range(max_count[-1] if max_count else 0):
        instance = ask(library, "nvmlDeviceGetMigDeviceHandleByIndex", (handle, n), bus_id)
        for function, values in _questions() if instance else ():
            ask(library, function, (instance[-1], *values), bus_id)


def fields(
    library: Library, handle: int, requests: Sequence[tuple[int, int]], bus_id: str
) -> list[tuple[int, int]] | None:
    """Read a batch of fields, given as (id, scope). Return (code, value) for each field; None if the call fails.

    The value is the integer in its 8 bytes, whatever its type.
    """
    packed = b"".join(FIELD_VALUE.pack(number, scope, 0, 0, 0, 999, b"") for number, scope in requests)
    batch = ctypes.create_string_buffer(packed, len(packed))
    if not _succeeds(library, "nvmlDeviceGetFieldValues", ctypes.c_void_p(handle), len(requests), batch, bus_id=bus_id):
        return None
    entries = FIELD_VALUE.iter_unpack(batch.raw)
    return [(entry[5], int.from_bytes(entry[6], "little")) for entry in entries]


def ask(library: Library, function: str, values: Values, bus_id: str = "") -> tuple[Any, ...]:
    """Call an NVML function with the inputs `values`. Return the values of its buffers, in the order of the arguments.

    Return an empty tuple if the call fails or the function has no signature.
    """
    described = signature(function)
    if described is None:
        return ()
    arguments, buffers = _arguments(described.words, list(values), entries=0)
    counts = [buffer for buffer in buffers if isinstance(buffer, _Count)]
    if counts:
        _succeeds(library, function, *arguments, bus_id=bus_id)
        arguments, buffers = _arguments(described.words, list(values), entries=counts[0].value + MORE)
    if not _succeeds(library, function, *arguments, bus_id=bus_id):
        return ()
    return tuple(buffer.value for buffer in buffers if hasattr(buffer, "value"))


def _succeeds(library: Library, function: str, *arguments: Any, bus_id: str) -> bool:
    try:
        library.raw(function, *arguments, bus_id=bus_id)
    except NvmlError:
        return False
    return True


def _arguments(words: Sequence[str], values: list[Any], *, entries: int) -> tuple[list[Any], list[Any]]:
    """Return all C arguments of a call, and those among them that are buffers for structs and outputs.

    `entries` is the number of entries for which the buffer of a list has room.
    """
    arguments: list[Any] = []
    buffers: list[Any] = []
    for word in words:
        kind, *rest = word.split()
        if word in _NUMBERS:
            arguments.append(_NUMBERS[word](values.pop(0)))
            continue
        if kind == "since":
            arguments.append(ctypes.c_ulonglong(0))
            continue
        memory = _memory(kind, rest, values, entries)
        buffers += memory
        arguments += [ctypes.byref(pointer) for pointer in memory]
        if kind == "text":
            arguments.append(ctypes.c_uint(ROOM))
    return arguments, buffers


class _Count(ctypes.c_uint):
    """The count argument of a function that returns a list.

    The function is called twice: first for the number of entries, then for the entries.
    """


_NUMBERS: Mapping[str, Any] = {
    "handle": ctypes.c_void_p,
    "string": ctypes.c_char_p,
    "u4": ctypes.c_uint,
    "i4": ctypes.c_int,
    "u8": ctypes.c_ulonglong,
}


def _memory(kind: str, rest: Sequence[str], values: list[Any], entries: int) -> list[Any]:
    if kind == "text":
        return [ctypes.create_string_buffer(ROOM)]
    if kind in {"list", "array"}:
        buffers = [_Count(entries), ctypes.create_string_buffer(int(rest[0]) * max(1, entries))]
        return buffers if kind == "list" else buffers[::-1]
    if kind == "out":
        plain = {"I": ctypes.c_uint, "Q": ctypes.c_ulonglong, "handle": ctypes.c_uint64, "i": ctypes.c_int}
        return [plain[rest[0]]() if rest[0] in plain else ctypes.create_string_buffer(struct.calcsize("<" + rest[0]))]
    inputs = values.pop(0) if values else b""
    size = int(rest[0]) if kind == "struct" else int.from_bytes(inputs[:4], "little") & 0xFFFFFF
    return [ctypes.create_string_buffer(inputs, size)]
