"""Notes every call below pynvml: what was asked, what was answered and how long it took, as lines to a descriptor.

A line before a call and one after it, so that a call which never returns is known as well. What is written here names
serials and uuids as they are: it goes through a pipe, and whoever reads it masks it.
"""

from __future__ import annotations

import ctypes
import json
import logging
import math
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from gpumon.clock import boot_clock
from gpumon.sim.capture import INITIALISATIONS
from gpumon.sim.cmemory import take
from gpumon.sim.codes import Refusal
from gpumon.sim.layouts import EVENT_DATA, FIELD_VALUE, METRIC, METRICS_HEAD
from gpumon.sim.pointers import Entry, Library
from gpumon.sim.signatures import WITHOUT, Signature, signature
from gpumon.sim.trace import Trace

log = logging.getLogger("gpumon.collectors.sampler")

GIVEN_ANEW = frozenset({"nvmlDeviceGetMigDeviceHandleByIndex"})
"""Lookups whose handles may have been those of instances that are gone. Any other handle keeps its first name."""
UNKNOWN = "handle of a call that was not recorded"


class Notes:
    """Writes lines. Of a call: `["in", serial, function, given]`, then `["out", serial, time, seconds, code, told]`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._serial = 0

    def entered(self, function: str, given: Sequence[Any]) -> int:
        """Returns the serial number of the call."""
        with self._lock:
            self._serial += 1
            serial = self._serial
        self.write("in", serial, function, given)
        return serial

    def write(self, *line: Any) -> None:
        rest = memoryview(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        with self._lock:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]


class Recorder:
    """Stands at `pynvml.nvmlLib`, in front of the library that was there or would have been loaded."""

    def __init__(self, library: Any, notes: Notes, clock: Callable[[], float] = boot_clock) -> None:
        self._library = library
        self._clock = clock
        self._notes = notes
        self._pointers = Library(self._entry, Trace(None))
        self._handles: dict[int, str] = {}
        self._samples: dict[int, tuple[Any, ...]] = {}
        self._aside = False
        self._given: Mapping[str, Callable[..., tuple[Any, ...]]] = {
            "nvmlDeviceGetFieldValues": self._device,
            "nvmlDeviceRegisterEvents": self._device,
            "nvmlEventSetWait_v2": lambda _: (),
            "nvmlGpmMetricsGet": self._samples_of,
        }
        self._told: Mapping[str, Callable[..., Sequence[Any]]] = {
            "nvmlDeviceGetFieldValues": _fields,
            "nvmlEventSetWait_v2": self._event,
            "nvmlGpmSampleGet": partial(self._sampled, 1),
            "nvmlGpmMigSampleGet": partial(self._sampled, 2),
            "nvmlGpmMetricsGet": _metrics,
        }

    def __getattr__(self, name: str) -> Any:
        try:
            real = getattr(self._library, name)
        except AttributeError:
            self._notes.write("missing", name)
            raise
        known = signature(name)
        if name not in WITHOUT:
            self._notes.write(*(("unrecorded", name) if known is None else ("signature", name, known.words)))
        function = real if known is None or name in WITHOUT else getattr(self._pointers, name)
        setattr(self, name, function)
        return function

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Calls meanwhile are not recorded: asked to learn something, they would spoil the answers to others."""
        self._aside = True
        try:
            yield
        finally:
            self._aside = False

    def find(self, what: str, bus_id: str, found: str) -> None:
        """Note in words what has been learned so."""
        self._notes.write("finding", what, bus_id, found)

    def _entry(self, name: str) -> Entry:
        known = signature(name)
        assert known is not None  # noqa: S101 - asked for above
        address = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0
        return Entry(partial(self._call, name, known, _function(known)(address)), known.c_types)

    def _call(self, name: str, known: Signature, real: Callable[..., int], *arguments: Any) -> int:
        if self._aside:
            return real(*arguments)
        given = self._given.get(name, partial(known.given, name=self._name))(arguments)
        serial = self._notes.entered(name, given)
        began = time.perf_counter()
        code = real(*arguments)
        seconds = time.perf_counter() - began
        at = self._clock()
        if code == 0 and name in INITIALISATIONS:
            self._handles.clear()  # they died with the initialisation before
        told = self._what_was_told(name, known, given, arguments) if code == 0 else ()
        self._notes.write("out", serial, at, round(seconds, 7), code, told)
        return code

    def _what_was_told(
        self, name: str, known: Signature, given: tuple[Any, ...], arguments: Sequence[Any]
    ) -> Sequence[Any] | None:
        """None when it cannot be read: the caller gets its answer all the same."""
        tell = self._told.get(name, partial(known.told, name=partial(self._new_name, name, given)))
        try:
            return tell(arguments)
        except (Refusal, ValueError, TypeError, struct.error):
            log.exception("an answer could not be noted", extra={"function": name})
            return None

    # Handles

    def _name(self, handle: int | None) -> str:
        return self._handles.get(handle or 0, UNKNOWN)

    def _new_name(self, function: str, given: tuple[Any, ...], handle: int | None) -> str:
        """A handle is called by the lookup that gave it, so that it is the same in every process and after a reload."""
        known = self._handles.get(handle or 0)
        if known is not None and function not in GIVEN_ANEW:
            return known
        name = f"{function.removeprefix('nvmlDeviceGet')}({', '.join(map(str, given))})"
        if known != name:
            self._notes.write("handle", name)
        self._handles[handle or 0] = name
        return name

    # What is more than arguments

    def _device(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """The rest is how much was asked for at once."""
        return (self._name(arguments[0]),)

    def _event(self, arguments: Sequence[Any]) -> Sequence[Any]:
        device, *rest = take(arguments[1], EVENT_DATA)
        return self._name(device), *rest

    def _sampled(self, given: int, arguments: Sequence[Any]) -> Sequence[Any]:
        """A sample has been taken: of which GPU, the metrics do not say."""
        device, *rest = arguments[:given]
        self._samples[arguments[given]] = self._name(device), (rest[0] if rest else None)
        return ()

    def _samples_of(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        *_, second = take(arguments[0], METRICS_HEAD)
        return self._samples.get(second, (UNKNOWN, None))


def _function(known: Signature) -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_int, *known.c_types)


def _fields(arguments: Sequence[Any]) -> Sequence[Any]:
    """Of each field: number, scope, code, type, value, whether it bore a time."""
    _, count, address = arguments
    entries = FIELD_VALUE.iter_unpack(ctypes.string_at(address, count * FIELD_VALUE.size))
    return [
        (number, scope, code, kind, int.from_bytes(value, "little"), int(stamp != 0))
        for number, scope, stamp, _latency, kind, code, value in entries
    ]


def _metrics(arguments: Sequence[Any]) -> Sequence[Any]:
    """Of each metric: number, code, value."""
    _, count, *_ = take(arguments[0], METRICS_HEAD)
    entries = ctypes.string_at(arguments[0] + METRICS_HEAD.size, count * METRIC.size)
    found = (one[:3] for one in METRIC.iter_unpack(entries))
    return [(number, code, None if math.isnan(value) else value) for number, code, value in found]
