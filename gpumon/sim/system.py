"""Simulates NVML's functions that concern no GPU: initialisation, versions, texts of return codes, process names."""

from __future__ import annotations

import ctypes
import struct
from functools import cache

from gpumon.sim.cmemory import put, put_text
from gpumon.sim.codes import Code, Refusal
from gpumon.sim.exports import POINTER, UINT, function
from gpumon.sim.sim_node import SimNode

_UINT = struct.Struct("<I")
_NO_GPUS = 1
"""Flag of nvmlInitWithFlags that lets initialisation succeed on a host without GPUs."""
_CONF_COMPUTE = struct.Struct("<III")  # environment, feature, tools mode


@function("nvmlInitWithFlags", UINT)
def init_with_flags(node: SimNode, flags: int) -> None:
    node.gate("nvmlInitWithFlags")
    node.initialise(may_be_empty=bool(flags & _NO_GPUS))


@function("nvmlInit_v2")
def init(node: SimNode) -> None:
    node.gate("nvmlInit_v2")
    node.initialise(may_be_empty=False)


@function("nvmlShutdown")
def shutdown(node: SimNode) -> None:
    node.enter("nvmlShutdown")
    node.shut_down()


@function("nvmlErrorString", ctypes.c_int, gives=ctypes.c_void_p)
def error_string(_node: SimNode, code: int) -> int:
    return ctypes.addressof(_words(code))


@cache
def _words(code: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer((Code(code) if code in set(Code) else Code.UNKNOWN).words.encode())


@function("nvmlSystemGetDriverVersion", POINTER, UINT)
def driver_version(node: SimNode, buffer: int | None, length: int) -> None:
    node.enter("nvmlSystemGetDriverVersion")
    put_text(buffer, length, node.scenario().driver)


@function("nvmlSystemGetNVMLVersion", POINTER, UINT)
def nvml_version(node: SimNode, buffer: int | None, length: int) -> None:
    node.enter("nvmlSystemGetNVMLVersion")
    put_text(buffer, length, node.profile.nvml)


@function("nvmlSystemGetCudaDriverVersion", POINTER)
def cuda_version(node: SimNode, out: int | None) -> None:
    node.enter("nvmlSystemGetCudaDriverVersion")
    put(out, _UINT, node.profile.cuda)


@function("nvmlSystemGetCudaDriverVersion_v2", POINTER)
def cuda_version_v2(node: SimNode, out: int | None) -> None:
    node.enter("nvmlSystemGetCudaDriverVersion_v2")
    put(out, _UINT, node.profile.cuda)


@function("nvmlSystemGetProcessName", UINT, POINTER, UINT)
def process_name(node: SimNode, pid: int, buffer: int | None, length: int) -> None:
    """Write `python3`, truncated to `length` bytes. Raise Refusal (NOT_FOUND) if no such process is on a GPU."""
    node.enter("nvmlSystemGetProcessName")
    running = {process.pid for gpu in node.gpus.counted_gpus() for process in node.gpus.state(gpu).processes}
    if pid not in running:
        raise Refusal(Code.NOT_FOUND)
    put_text(buffer, length, "python3"[: max(0, length - 1)])


@function("nvmlSystemGetConfComputeState", POINTER)
def conf_compute_state(node: SimNode, out: int | None) -> None:
    node.enter("nvmlSystemGetConfComputeState")
    put(out, _CONF_COMPUTE, 0, 0, 0)
