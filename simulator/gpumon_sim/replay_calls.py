"""NVML functions whose replay is more than returning a recorded answer: initialisation, fields, events, GPM."""

from __future__ import annotations

import ctypes
import math
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from gpumon_sim.capture import EVENT, FIELD, METRIC, CapturedQuery
from gpumon_sim.cmemory import put, take
from gpumon_sim.codes import Code, Refusal
from gpumon_sim.exports import EXPORTS
from gpumon_sim.layouts import FIELD_VALUE, METRIC_ANSWER, METRICS_HEAD
from gpumon_sim.layouts import METRIC as METRIC_VALUE
from gpumon_sim.pointers import Entry
from gpumon_sim.replay import Replay, ReplayEventSet, ReplayGpmSample
from gpumon_sim.signatures import Signature
from gpumon_sim.system import error_string

_VALUE = struct.Struct("<Q")


class _Special(NamedTuple):
    call: Callable[..., Any]
    needs: str
    """Function that the recording must contain for this function to be exported; "" to export it in any case."""


_SPECIAL: dict[str, _Special] = {}
_ALWAYS = ""


def _special_call(name: str, needs: str = _ALWAYS) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def note(written: Callable[..., Any]) -> Callable[..., Any]:
        _SPECIAL[name] = _Special(written, needs)
        return written

    return note


def find(replay: Replay, name: str) -> Entry:
    """Return the implementation of a C function. Raise AttributeError if the recording does not have the function."""
    special = _SPECIAL.get(name)
    needs = name if special is None else special.needs
    if needs and needs not in replay.signatures:
        raise AttributeError(f"the recording has no {name}")
    if special is not None:
        export = EXPORTS[name]
        return Entry(partial(special.call, replay), Signature(export.words).c_types, export.gives)
    signature = replay.signatures[name]
    return Entry(partial(_generic, replay, name, signature), signature.c_types)


def _generic(replay: Replay, name: str, signature: Signature, *arguments: Any) -> None:
    replay.need_initialised()
    inputs = signature.inputs(arguments, replay.name)
    if signature.words[:1] == ("handle",):
        replay.need_answering(inputs[0])
    if replay.is_of_another_version(name, inputs):
        raise Refusal(Code.ARGUMENT_VERSION_MISMATCH)
    signature.put(arguments, replay.ask(name, inputs), replay.handle)


# Library

_special_call("nvmlErrorString")(error_string)


@_special_call("nvmlInitWithFlags")
def init_with_flags(replay: Replay, _flags: int) -> None:
    replay.initialise()


@_special_call("nvmlInit_v2")
def init(replay: Replay) -> None:
    replay.initialise()


@_special_call("nvmlShutdown")
def shutdown(replay: Replay) -> None:
    replay.shut_down()


# Fields


@_special_call("nvmlDeviceGetFieldValues", needs="nvmlDeviceGetFieldValues")
def field_values(replay: Replay, handle: int | None, count: int, address: int | None) -> None:
    """Write the recorded answer for each requested field into the caller's array: `count` structs at `address`.

    A field that was not recorded gets NVML's code for an unsupported field. The requested fields may have been recorded
    in different batches. Raise Refusal if the whole call fails.
    """
    replay.need_initialised()
    device = replay.name(handle)
    replay.need_answering(device)
    replay.ask("nvmlDeviceGetFieldValues", (device,))
    if count <= 0 or not address:
        raise Refusal(Code.INVALID_ARGUMENT)
    batch = bytearray(ctypes.string_at(address, count * FIELD_VALUE.size))
    stamp = time.time_ns() // 1000
    for at in range(0, len(batch), FIELD_VALUE.size):
        number, scope, _, latency, kind, _, before = FIELD_VALUE.unpack_from(batch, at)
        try:
            kind, value, stamped = replay.ask(FIELD, (device, number, scope))
        except Refusal as refusal:
            FIELD_VALUE.pack_into(batch, at, number, scope, stamp, latency, kind, refusal.code, before)
        else:
            FIELD_VALUE.pack_into(batch, at, number, scope, stamp * stamped, latency, kind, 0, _VALUE.pack(value))
    ctypes.memmove(address, bytes(batch), len(batch))


# Events


@_special_call("nvmlEventSetCreate", needs="nvmlEventSetCreate")
def create(replay: Replay, out: int | None) -> None:
    replay.need_initialised()
    replay.ask("nvmlEventSetCreate", ())
    replay.event_sets.allocate(out, ReplayEventSet())


@_special_call("nvmlEventSetFree", needs="nvmlEventSetCreate")
def free(replay: Replay, pointer: int | None) -> None:
    replay.need_initialised()
    replay.event_sets.free(pointer)


@_special_call("nvmlDeviceRegisterEvents", needs="nvmlDeviceRegisterEvents")
def register(replay: Replay, handle: int | None, types: int, pointer: int | None) -> None:
    registered = replay.event_set(pointer).registered
    device = replay.name(handle)
    replay.need_answering(device)
    replay.ask("nvmlDeviceRegisterEvents", (device,))
    if types & ~replay.ask("nvmlDeviceGetSupportedEventTypes", (device,))[0]:
        raise Refusal(Code.NOT_SUPPORTED)
    before, since = registered.get(device, (0, replay.time()))
    registered[device] = before | types, since


@_special_call("nvmlEventSetWait_v2", needs="nvmlEventSetWait_v2")
def wait(replay: Replay, pointer: int | None, out: int | None, milliseconds: int) -> None:
    """Write the next recorded event of a registered GPU to `out`.

    Raise Refusal (TIMEOUT) if no event is due within `milliseconds`. If the recorded call failed with another error at
    this time, raise Refusal with that error immediately.
    """
    replay.wait(pointer, out, milliseconds, partial(_next_event, replay))


def _next_event(replay: Replay, waiting: ReplayEventSet) -> tuple[Any, ...] | None:
    """Return the next event (handle, type, data, instances) and mark it as delivered; None if no event is due."""
    timeline = replay.recorded.timeline(EVENT)
    for n, moment in enumerate(timeline.times if timeline else ()):
        _, device, *datum = timeline.answers[n] if timeline else ()
        types, since = waiting.registered.get(device, (0, 0.0))
        if types & datum[0] and since < moment <= replay.time() and n not in waiting.delivered:
            waiting.delivered.add(n)
            return replay.handle(device), *datum
    calls = replay.recorded.timeline("nvmlEventSetWait_v2")
    answer = calls.at(replay.time()) if calls else (Code.TIMEOUT,)
    if answer[0] != Code.TIMEOUT:
        replay.succeed(answer)
    return None


# GPM


@_special_call("nvmlGpmSampleAlloc", needs="nvmlGpmSampleAlloc")
def sample_alloc(replay: Replay, out: int | None) -> None:
    replay.need_initialised()
    replay.ask("nvmlGpmSampleAlloc", ())
    replay.samples.allocate(out, None)


@_special_call("nvmlGpmSampleFree", needs="nvmlGpmSampleAlloc")
def sample_free(replay: Replay, pointer: int | None) -> None:
    replay.samples.free(pointer)


@_special_call("nvmlGpmSampleGet", needs="nvmlGpmSampleGet")
def sample_get(replay: Replay, handle: int | None, pointer: int | None) -> None:
    device = replay.name(handle)
    _sample(replay, "nvmlGpmSampleGet", (device,), ReplayGpmSample(device, None, replay.time()), pointer)


@_special_call("nvmlGpmMigSampleGet", needs="nvmlGpmMigSampleGet")
def mig_sample_get(replay: Replay, handle: int | None, instance: int, pointer: int | None) -> None:
    device = replay.name(handle)
    taken = ReplayGpmSample(device, instance, replay.time())
    _sample(replay, "nvmlGpmMigSampleGet", (device, instance), taken, pointer)


def _sample(
    replay: Replay, function: str, inputs: tuple[Any, ...], taken: ReplayGpmSample, pointer: int | None
) -> None:
    replay.need_initialised()
    replay.need_answering(taken.device)
    replay.samples.at(pointer)
    replay.ask(function, inputs)
    replay.samples[pointer or 0] = taken


@_special_call("nvmlGpmMetricsGet", needs="nvmlGpmMetricsGet")
def metrics_get(replay: Replay, address: int | None) -> None:
    """Write the metric values that were recorded at the time of the second sample into the caller's struct."""
    replay.need_initialised()
    _, count, *pointers = take(address, METRICS_HEAD)
    first, second = (replay.samples.get(pointer) for pointer in pointers)
    if first is None or second is None or first[:2] != second[:2]:
        raise Refusal(Code.INVALID_ARGUMENT)
    replay.ask("nvmlGpmMetricsGet", second[:2])
    for n in range(count):
        at = (address or 0) + METRICS_HEAD.size + n * METRIC_VALUE.size
        (number, *_) = take(at, METRIC_VALUE)
        put(at + 4, METRIC_ANSWER, *_metric(replay, second, number))


def _metric(replay: Replay, sample: ReplayGpmSample, number: int) -> tuple[int, float]:
    timeline = replay.recorded.answers.get(CapturedQuery(METRIC, (sample.device, sample.instance, number)))
    if timeline is None:
        return Code.NOT_SUPPORTED, 0.0
    code, *value = timeline.at(sample.taken)
    if code:
        return code, 0.0
    return code, math.nan if value[0] is None else value[0]
