"""Simulates nvmlDeviceGetSamples (20 samples, of the last two seconds) and nvmlDeviceGetPcieThroughput."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

from gpumon_sim.cmemory import put, take
from gpumon_sim.codes import Code, Refusal
from gpumon_sim.exports import function, getter
from gpumon_sim.gpu_states import SAMPLES
from gpumon_sim.layouts import UINT
from gpumon_sim.observe import MEMORY_SHARE, PCIE_BYTES_PER_SECOND, utilization
from gpumon_sim.physics import Course
from gpumon_sim.sim_gpu import SimGpu
from gpumon_sim.sim_node import SimNode

_SAMPLE = struct.Struct("<QI4x")  # time (µs), value
_UNSIGNED_INT = 1
_POWER, _UTILIZATION, _MEMORY = 0, 1, 2
"""NVML's sample types: power, GPU utilization, memory utilization."""
_MAX_SAMPLES = 20
_THROUGHPUT_SECONDS = 0.02

Read = Callable[[Course, int, float], float]
_READS: dict[int, Read] = {
    _POWER: lambda course, _gpu, at: course.at(at).point.power * 1000,
    _UTILIZATION: lambda course, gpu, at: utilization(course, gpu, at)[0],
    _MEMORY: lambda course, gpu, at: utilization(course, gpu, at)[1] * MEMORY_SHARE,
}


@function("nvmlDeviceGetSamples", "handle", "u4", "since", "object", "object", "object")
def samples(node: SimNode, handle: int | None, kind: int, since: int, *pointers: int | None) -> None:
    """Write the samples newer than `since` (wall time in µs), the newest if not all fit. `kind` is NVML's sample type.

    `pointers` point to the value type, the number of samples and the array. If the array is NULL, write only the
    type and the maximum number of samples. Raise Refusal (NOT_FOUND) if no sample is newer.
    """
    device = node.device("nvmlDeviceGetSamples", handle)
    kind_of_value, size, array = pointers
    read = _READS.get(kind)
    if read is None or (kind != _POWER and device.state.utilization is None):
        raise Refusal(Code.NOT_SUPPORTED)
    put(kind_of_value, UINT, _UNSIGNED_INT)
    if not array:
        put(size, UINT, _MAX_SAMPLES)
        return
    (room,) = take(size, UINT)
    if not room:
        raise Refusal(Code.INVALID_ARGUMENT)
    newer = [at for at in _times(node) if at[0] > since][-room:]
    if not newer:
        raise Refusal(Code.NOT_FOUND)
    put(size, UINT, len(newer))
    course, gpu = node.gpus.course(device.identity.number), device.identity.number
    for n, (stamp, at) in enumerate(newer):
        put(array + n * _SAMPLE.size, _SAMPLE, stamp, round(read(course, gpu, at)))


def _times(node: SimNode) -> list[tuple[int, float]]:
    """Return the time of each available sample, oldest first, as (wall time in µs, seconds since simulation began)."""
    tick, wall = node.gpus.tick(), time.time()
    ages = [n / SAMPLES for n in range(_MAX_SAMPLES - 1, -1, -1) if tick >= n / SAMPLES]
    return [(int((wall - age) * 1e6), tick - age) for age in ages]


@getter("nvmlDeviceGetPcieThroughput", "I", takes=["u4"])
def pcie_throughput(device: SimGpu, _way: int) -> float:
    """Return PCIe traffic in KB/s, equal in both ways. Takes 20 ms, for which a real driver measures the traffic."""
    time.sleep(_THROUGHPUT_SECONDS)
    return (device.state.own_load / 100) * PCIE_BYTES_PER_SECOND / 1000
