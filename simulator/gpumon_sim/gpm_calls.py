"""Simulates NVML's functions for GPU performance monitoring (GPM): samples, and metrics from two samples."""

from __future__ import annotations

import ctypes
import struct
from functools import cache

from gpumon_sim import gpm
from gpumon_sim.cmemory import put, take
from gpumon_sim.codes import Code, Refusal
from gpumon_sim.exports import device_function, function, node_function
from gpumon_sim.gpm import GpmSample
from gpumon_sim.layouts import METRIC, METRICS_HEAD
from gpumon_sim.sim_gpu import SimGpu
from gpumon_sim.sim_node import SimNode

_SUPPORT = struct.Struct("<II")  # version, supported
_VERSION = 1
"""Version in the GPM structs: a plain number, while the versions of other NVML structs include the struct's size."""


@device_function("nvmlGpmQueryDeviceSupport", "struct 8 4", parts=True)
def query_support(device: SimGpu, out: int | None) -> None:
    version, _ = take(out, _SUPPORT)
    _check(version)
    put(out, _SUPPORT, version, _is_supported(device))


def _check(version: int) -> None:
    if version != _VERSION:
        raise Refusal(Code.ARGUMENT_VERSION_MISMATCH)


def _is_supported(device: SimGpu) -> bool:
    return device.board.gpm and not device.profile.guest


@node_function("nvmlGpmSampleAlloc", "object")
def allocate(node: SimNode, out: int | None) -> None:
    node.samples.allocate(out, None)


@node_function("nvmlGpmSampleFree", "object")
def free(node: SimNode, pointer: int | None) -> None:
    node.samples.free(pointer)


@function("nvmlGpmSampleGet", "handle", "object")
def take_sample(node: SimNode, handle: int | None, pointer: int | None) -> None:
    device = node.device("nvmlGpmSampleGet", handle, parts=True)
    _store_sample(node, device, pointer, device.part.instance.number if device.part else None)


@function("nvmlGpmMigSampleGet", "handle", "u4", "object")
def take_instance_sample(node: SimNode, handle: int | None, instance: int, pointer: int | None) -> None:
    """Take a GPM sample at the allocated `pointer`, of the GPU instance with the id `instance` on the handle's GPU."""
    device = node.device("nvmlGpmMigSampleGet", handle)
    if device.state.mig is None:
        raise Refusal(Code.NOT_SUPPORTED)
    _store_sample(node, device, pointer, instance)


def _store_sample(node: SimNode, device: SimGpu, pointer: int | None, instance: int | None) -> None:
    if not _is_supported(device):
        raise Refusal(Code.NOT_SUPPORTED)
    node.samples.at(pointer)
    compute = {each.number: each.compute for each in device.state.mig or ()}
    if instance is not None and instance not in compute:
        raise Refusal(Code.INVALID_ARGUMENT)
    empty = instance is not None and not compute[instance]
    gpu = device.identity.number
    node.samples[pointer or 0] = GpmSample(gpu, instance, node.gpus.sampled_at(gpu), device.state, empty)


@function("nvmlGpmMetricsGet", "object")
def metrics(node: SimNode, address: int | None) -> None:
    """Write the return code and value of each requested metric into the caller's nvmlGpmMetricsGet_t.

    The call succeeds even if some metrics fail.
    """
    node.need_initialised()
    version, count, *pointers = take(address, METRICS_HEAD)
    _check(version)
    earlier, later = (node.samples.at(pointer) for pointer in pointers)
    if earlier is None or later is None or earlier[:2] != later[:2] or count > gpm.highest(node.driver):
        raise Refusal(Code.INVALID_ARGUMENT)
    node.gate("nvmlGpmMetricsGet", later.gpu)
    for n in range(count):
        place = (address or 0) + METRICS_HEAD.size + n * METRIC.size
        number, *_ = take(place, METRIC)
        put(place, METRIC, number, *_answer(number, earlier, later))


def _answer(number: int, earlier: GpmSample, later: GpmSample) -> tuple[int, float, int, int, int]:
    name = gpm.NAMES.get(number)
    if name is None:
        return Code.NOT_SUPPORTED, -1.0, 0, 0, 0
    words = _words(name)
    if later.empty:
        return Code.NO_DATA, -1.0, *words
    value = gpm.value(name, earlier, later)
    return (Code.NOT_SUPPORTED, -1.0, *words) if value is None else (Code.SUCCESS, value, *words)


@cache
def _texts(*texts: str) -> tuple[ctypes.Array[ctypes.c_char], ...]:
    return tuple(ctypes.create_string_buffer(text.encode()) for text in texts)


def _words(name: str) -> tuple[int, int, int]:
    """Return the addresses of a metric's short name, long name and unit, valid as long as the process runs."""
    short, long, unit = _texts(name, name.replace("_", " "), "MiB/s" if name.endswith("per_sec") else "%")
    return ctypes.addressof(short), ctypes.addressof(long), ctypes.addressof(unit)
