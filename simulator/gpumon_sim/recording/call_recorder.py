"""Records the NVML calls of pynvml as JSON lines on a file descriptor: arguments, answer and duration.

One line is written before a call and one after it, so that a call that never returns is recorded too. Serial numbers
and uuids are not masked here, but by the process that reads the lines.
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
from gpumon_sim.capture import INITIALISATIONS
from gpumon_sim.cmemory import take
from gpumon_sim.codes import Refusal
from gpumon_sim.layouts import EVENT_DATA, FIELD_VALUE, METRIC, METRICS_HEAD
from gpumon_sim.library import WITHOUT, signature
from gpumon_sim.pointers import Entry, SimLibrary
from gpumon_sim.signatures import Signature
from gpumon_sim.trace import Trace

log = logging.getLogger("gpumon.collectors.sampler")

NEW_HANDLE_EACH_CALL = frozenset({"nvmlDeviceGetMigDeviceHandleByIndex"})
"""Lookups whose handles NVML reuses for other MIG devices. Each call of such a lookup gives the returned handle a new
name. The handle from any other lookup keeps its first name.
"""
UNKNOWN = "handle of a call that was not recorded"


class CallLog:
    """The log of NVML calls: JSON lines on a file descriptor.

    A call has the lines `["in", serial, function, inputs]` and `["out", serial, time, seconds, code, outputs]`: `time`
    is the end of the call on the boot clock. Other lines begin with another word, such as "handle" or "finding".
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._serial = 0

    def begin_call(self, function: str, inputs: Sequence[Any]) -> int:
        """Write the line that precedes a call. Return a new serial number for the call."""
        with self._lock:
            self._serial += 1
            serial = self._serial
        self.write("in", serial, function, inputs)
        return serial

    def write(self, *line: Any) -> None:
        rest = memoryview(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        with self._lock:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]


class CallRecorder:
    """A replacement for `pynvml.nvmlLib` that forwards calls to the real library and records them in the call log.

    Calls of functions that have no signature or are in WITHOUT are forwarded, but not recorded.
    """

    def __init__(self, library: Any, notes: CallLog, clock: Callable[[], float] = boot_clock) -> None:
        self._library = library
        self._clock = clock
        self._notes = notes
        self._pointers = SimLibrary(self._entry, Trace(None))
        self._handles: dict[int, str] = {}
        self._samples: dict[int, tuple[Any, ...]] = {}
        self._suspended = False
        self._inputs: Mapping[str, Callable[..., tuple[Any, ...]]] = {
            "nvmlDeviceGetFieldValues": self._device,
            "nvmlDeviceRegisterEvents": self._device,
            "nvmlEventSetWait_v2": lambda _: (),
            "nvmlGpmMetricsGet": self._samples_of,
        }
        self._outputs: Mapping[str, Callable[..., Sequence[Any]]] = {
            "nvmlDeviceGetFieldValues": _fields,
            "nvmlEventSetWait_v2": self._event,
            "nvmlGpmSampleGet": partial(self._store_sample, 1),
            "nvmlGpmMigSampleGet": partial(self._store_sample, 2),
            "nvmlGpmMetricsGet": _metrics,
        }

    def __getattr__(self, name: str) -> Any:
        try:
            real = getattr(self._library, name)
        except AttributeError:
            self._notes.write("missing", name)
            raise
        described = signature(name)
        if name not in WITHOUT:
            self._notes.write(*(("unrecorded", name) if described is None else ("signature", name, described.words)))
        function = real if described is None or name in WITHOUT else getattr(self._pointers, name)
        setattr(self, name, function)
        return function

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Suspend recording inside a `with` block, whose calls would distort the recorded answers."""
        self._suspended = True
        try:
            yield
        finally:
            self._suspended = False

    def record_finding(self, what: str, bus_id: str, answer: str) -> None:
        """Write an observation about the driver to the call log: the question `what`, a GPU's bus id, the answer."""
        self._notes.write("finding", what, bus_id, answer)

    def _entry(self, name: str) -> Entry:
        described = signature(name)
        assert described is not None  # noqa: S101 - __getattr__ checked it
        address = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0
        return Entry(partial(self._call, name, described, _function(described)(address)), described.c_types)

    def _call(self, name: str, described: Signature, real: Callable[..., int], *arguments: Any) -> int:
        if self._suspended:
            return real(*arguments)
        inputs = self._inputs.get(name, partial(described.inputs, name=self._name))(arguments)
        serial = self._notes.begin_call(name, inputs)
        began = time.perf_counter()
        code = real(*arguments)
        seconds = time.perf_counter() - began
        at = self._clock()
        if code == 0 and name in INITIALISATIONS:
            self._handles.clear()  # the previous initialisation's handles are invalid now
        output = self._output(name, described, inputs, arguments) if code == 0 else ()
        self._notes.write("out", serial, at, round(seconds, 7), code, output)
        return code

    def _output(
        self, name: str, described: Signature, inputs: tuple[Any, ...], arguments: Sequence[Any]
    ) -> Sequence[Any] | None:
        """Return a successful call's outputs for the call log. If they cannot be read, log an error and return None.

        The NVML client gets its answer in both cases.
        """
        read_output = self._outputs.get(name, partial(described.outputs, name=partial(self._new_name, name, inputs)))
        try:
            return read_output(arguments)
        except (Refusal, ValueError, TypeError, struct.error):
            log.exception("an answer could not be recorded", extra={"function": name})
            return None

    # Handles

    def _name(self, handle: int | None) -> str:
        return self._handles.get(handle or 0, UNKNOWN)

    def _new_name(self, function: str, inputs: tuple[Any, ...], handle: int | None) -> str:
        """Return the name of a handle that a lookup returned: the first lookup that returned it, with its inputs.

        Unlike the handle, the name is the same in every process and after the driver is reloaded. For lookups in
        NEW_HANDLE_EACH_CALL, the latest lookup gives the name.
        """
        earlier = self._handles.get(handle or 0)
        if earlier is not None and function not in NEW_HANDLE_EACH_CALL:
            return earlier
        name = f"{function.removeprefix('nvmlDeviceGet')}({', '.join(map(str, inputs))})"
        if earlier != name:
            self._notes.write("handle", name)
        self._handles[handle or 0] = name
        return name

    # Inputs and outputs that a signature does not describe

    def _device(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Return the name of the device handle as the only input to record.

        The other arguments of the call are not part of the query.
        """
        return (self._name(arguments[0]),)

    def _event(self, arguments: Sequence[Any]) -> Sequence[Any]:
        device, *rest = take(arguments[1], EVENT_DATA)
        return self._name(device), *rest

    def _store_sample(self, inputs: int, arguments: Sequence[Any]) -> Sequence[Any]:
        """Store the device and GPU instance of a GPM sample, because nvmlGpmMetricsGet receives only samples.

        `inputs` is the number of arguments before the sample. Return (), because the call has no outputs to record.
        """
        device, *rest = arguments[:inputs]
        self._samples[arguments[inputs]] = self._name(device), (rest[0] if rest else None)
        return ()

    def _samples_of(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        *_, second = take(arguments[0], METRICS_HEAD)
        return self._samples.get(second, (UNKNOWN, None))


def _function(described: Signature) -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_int, *described.c_types)


def _fields(arguments: Sequence[Any]) -> Sequence[Any]:
    """Return (id, scope, code, type, value, 1 if the field has a timestamp, otherwise 0) for each field of a batch."""
    _, count, address = arguments
    entries = FIELD_VALUE.iter_unpack(ctypes.string_at(address, count * FIELD_VALUE.size))
    return [
        (number, scope, code, kind, int.from_bytes(value, "little"), int(stamp != 0))
        for number, scope, stamp, _latency, kind, code, value in entries
    ]


def _metrics(arguments: Sequence[Any]) -> Sequence[Any]:
    """Return (id, code, value) for each GPM metric of a call. The value is None if NVML returned NaN."""
    _, count, *_ = take(arguments[0], METRICS_HEAD)
    entries = ctypes.string_at(arguments[0] + METRICS_HEAD.size, count * METRIC.size)
    values = (entry[:3] for entry in METRIC.iter_unpack(entries))
    return [(number, code, None if math.isnan(value) else value) for number, code, value in values]
