"""Simulates NVML's functions that concern no GPU: initialisation, versions, texts of return codes, process names."""

from __future__ import annotations

import ctypes
import struct
from functools import cache

from gpumon_sim.cmemory import put, put_text
from gpumon_sim.codes import Code, Refusal
from gpumon_sim.exports import function, node_function
from gpumon_sim.layouts import UINT
from gpumon_sim.sim_node import SimNode

_NO_GPUS = 1
"""Flag of nvmlInitWithFlags that lets initialisation succeed on a host without GPUs."""
_CONF_COMPUTE = struct.Struct("<III")  # environment, feature, tools mode


@function("nvmlInitWithFlags", "u4")
def init_with_flags(node: SimNode, flags: int) -> None:
    node.gate("nvmlInitWithFlags")
    node.initialise(may_be_empty=bool(flags & _NO_GPUS))


@function("nvmlInit_v2")
def init(node: SimNode) -> None:
    node.gate("nvmlInit_v2")
    node.initialise(may_be_empty=False)


@node_function("nvmlShutdown")
def shutdown(node: SimNode) -> None:
    node.shut_down()


@function("nvmlErrorString", "i4", gives=ctypes.c_void_p)
def error_string(_node: SimNode, code: int) -> int:
    return ctypes.addressof(_words(code))


@cache
def _words(code: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer((Code(code) if code in set(Code) else Code.UNKNOWN).words.encode())


@node_function("nvmlSystemGetDriverVersion", "text")
def driver_version(node: SimNode, buffer: int | None, length: int) -> None:
    put_text(buffer, length, node.scenario().driver)


@node_function("nvmlSystemGetNVMLVersion", "text")
def nvml_version(node: SimNode, buffer: int | None, length: int) -> None:
    put_text(buffer, length, node.profile.nvml)


@node_function("nvmlSystemGetCudaDriverVersion", "out i")
@node_function("nvmlSystemGetCudaDriverVersion_v2", "out i")
def cuda_version(node: SimNode, out: int | None) -> None:
    put(out, UINT, node.profile.cuda)


@node_function("nvmlSystemGetProcessName", "u4", "text")
def process_name(node: SimNode, pid: int, buffer: int | None, length: int) -> None:
    """Write `python3`, truncated to `length` bytes. Raise Refusal (NOT_FOUND) if no such process is on a GPU."""
    running = {process.pid for gpu in node.gpus.counted_gpus() for process in node.gpus.state(gpu).processes}
    if pid not in running:
        raise Refusal(Code.NOT_FOUND)
    put_text(buffer, length, "python3"[: max(0, length - 1)])


@node_function("nvmlSystemGetConfComputeState", "out III")
def conf_compute_state(_node: SimNode, out: int | None) -> None:
    put(out, _CONF_COMPUTE, 0, 0, 0)
