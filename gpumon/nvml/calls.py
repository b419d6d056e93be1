"""TABLE: getters that pynvml's wrappers leave half done: structs with a version of their own, asked with ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from gpumon.nvml.library import Library

_VERSION_SHIFT = 24


class EccSramErrorStatus(ctypes.Structure):
    """nvmlEccSramErrorStatus_v1_t, of which only the last member is read."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("counts", ctypes.c_ulonglong * 11),
        ("bThresholdExceeded", ctypes.c_uint),
    )


def sram_ecc_error_status(library: Library, handle: Any, bus_id: str) -> EccSramErrorStatus:
    status = EccSramErrorStatus()
    status.version = ctypes.sizeof(status) | 1 << _VERSION_SHIFT
    library.call("nvmlDeviceGetSramEccErrorStatus", handle, ctypes.byref(status), bus_id=bus_id)
    return status


CALLS: Mapping[str, Callable[[Library, Any, str], Any]] = {"SramEccErrorStatus": sram_ecc_error_status}
"""By the name that rows give; any other name is pynvml's `nvmlDeviceGet<name>`."""
