"""Simulates NVML's functions for the processes on a GPU, and for the utilization of each process."""

from __future__ import annotations

import struct
import time

from gpumon_sim.cmemory import check_version, put, put_list, take
from gpumon_sim.codes import Code, Refusal
from gpumon_sim.exports import device_function
from gpumon_sim.layouts import UINT
from gpumon_sim.quantities import Process
from gpumon_sim.sim_gpu import SimGpu

_PROCESS = struct.Struct("<I4xQII")
_DETAIL = struct.Struct("<I4xQIIQ")
_UNTIL = (535, 98)
"""First driver of branch 535 in which nvmlProcessInfo_t has 24 bytes again. From 535.54 to 535.86 it had a fifth
member, usedGpuCcProtectedMemory, which then moved to the detail list (source: nvitop, api/libnvml.py).
"""
_DETAILS = struct.Struct("<III4xQ")  # version, mode, number of entries, array
_UTILIZATION = struct.Struct("<I4xQIIII")  # pid, time (µs), multiprocessors, memory, encoder, decoder


def _compute(device: SimGpu, size: int | None, array: int | None) -> None:
    running = _running_processes(device)
    if (535,) <= device.driver < _UNTIL:
        put_list(size, array, _DETAIL, [(*process, 0) for process in running])
    else:
        put_list(size, array, _PROCESS, running)


def _running_processes(device: SimGpu) -> list[Process]:
    """Return the processes on a GPU or, if `device` is a MIG device, only the processes on that MIG device."""
    part = device.part
    return [
        process
        for process in device.state.processes
        if part is None or (process.gpu_instance, process.compute_instance) == (part.instance.number, part.number)
    ]


def _none(_device: SimGpu, size: int | None, _array: int | None) -> None:
    put(size, UINT, 0)


_SINCE = (510,)
device_function("nvmlDeviceGetComputeRunningProcesses_v3", "list 24", since=_SINCE, parts=True)(_compute)
device_function("nvmlDeviceGetGraphicsRunningProcesses_v3", "list 24", since=_SINCE, parts=True)(_none)
device_function("nvmlDeviceGetMPSComputeRunningProcesses_v3", "list 24", since=_SINCE, parts=True)(_none)


@device_function("nvmlDeviceGetRunningProcessDetailList", "object", since=_UNTIL, parts=True)
def process_details(device: SimGpu, out: int | None) -> None:
    """Write the running processes as nvmlProcessDetailList_t. There are none in modes other than 0 (compute).

    The memory for confidential computing is 0 in each entry, because confidential computing is off.
    """
    check_version(out, 1, _DETAILS.size)
    version, mode, room, array = take(out, _DETAILS)
    running = [] if mode else _running_processes(device)
    put(out, _DETAILS, version, mode, len(running), array)
    if len(running) > room:
        raise Refusal(Code.INSUFFICIENT_SIZE)
    for n, process in enumerate(running):
        put(array + n * _DETAIL.size, _DETAIL, *process, 0)


@device_function("nvmlDeviceGetProcessUtilization", "array 32", "since")
def process_utilization(device: SimGpu, array: int | None, size: int | None, since: int) -> None:
    """Write a utilization sample for each process, with the current time.

    Raise Refusal (NOT_FOUND) if there is no process, or `since` (wall time in µs) is not in the past.
    """
    if device.state.utilization is None:
        raise Refusal(Code.NOT_SUPPORTED)
    now = time.time_ns() // 1000
    running = device.state.processes if since < now else ()
    if not running:
        raise Refusal(Code.NOT_FOUND)
    shares = (int(share or 0) // len(running) for share in (device.state.utilization, device.state.memory_utilization))
    each = (*shares, 0, 0)
    put_list(size, array, _UTILIZATION, [(process.pid, now, *each) for process in running])
