"""Simulates NVML's functions for memory errors: ECC counters, remapped rows, retired pages."""

from __future__ import annotations

import struct

from gpumon_sim.cmemory import check_version, put, take, whole
from gpumon_sim.codes import Code, Refusal
from gpumon_sim.exports import device_function, getter
from gpumon_sim.layouts import UINT
from gpumon_sim.sim_gpu import SimGpu

AMPERE = 7
_CORRECTED, _UNCORRECTED = 0, 1
"""NVML's ECC error types."""
_VOLATILE, _LIFETIME = 0, 1
"""NVML's ECC counter types: since the driver was loaded, and over the life of the board."""
_L2, _DRAM, _SRAM = 1, 2, 7
"""NVML's memory locations for which the simulation counts errors: L2 cache, device memory, SRAM."""
_REPAIR, _UNREPAIRABLE = struct.Struct("<III"), struct.Struct("<II")
_SRAM_STATUS = struct.Struct("<I4x11QI4x")


def _count(device: SimGpu, error: int, counter: int, place: str) -> float | None:
    if error > _UNCORRECTED or counter > _LIFETIME:
        raise Refusal(Code.INVALID_ARGUMENT)
    lifetime = "lifetime_" if counter == _LIFETIME else ""
    count: float | None = getattr(
        device.state, f"ecc_{lifetime}{'uncorrected' if error == _UNCORRECTED else 'corrected'}_{place}"
    )
    return count if device.state.ecc_mode else None


@getter("nvmlDeviceGetTotalEccErrors", "Q", takes=["u4", "u4"])
def total_errors(device: SimGpu, error: int, counter: int) -> float | None:
    counts = [_count(device, error, counter, place) for place in ("sram", "dram")]
    return None if None in counts else sum(count or 0 for count in counts)


@getter("nvmlDeviceGetMemoryErrorCounter", "Q", takes=["u4", "u4", "u4"])
def errors_of(device: SimGpu, error: int, counter: int, location: int) -> float | None:
    """Return the number of ECC errors at an NVML memory location; None if it has no counter or ECC is disabled.

    `error` is NVML's error type, `counter` its counter type (volatile or lifetime). SRAM errors are counted at the
    location SRAM from Ampere on, and at the location L2 cache on older GPUs.
    """
    sram = _SRAM if device.board.architecture >= AMPERE else _L2
    places = {_DRAM: "dram", sram: "sram"}
    return _count(device, error, counter, places[location]) if location in places else None


getter("nvmlDeviceGetEccMode", "I", "I")(lambda device: (device.state.ecc_mode, device.state.ecc_pending))


@device_function("nvmlDeviceGetSramEccErrorStatus", "versioned 4", since=(535,))
def sram_status(device: SimGpu, out: int | None) -> None:
    """Write nvmlEccSramErrorStatus_t, the details of SRAM errors.

    The struct has three counters for the life of the board (parity errors, uncorrected SEC-DED errors, corrected
    errors), the same three counters since the driver was loaded, five counters of uncorrected errors by location, and
    the flag of an exceeded threshold.
    """
    check_version(out, 1, _SRAM_STATUS.size)
    state = device.state
    if state.ecc_threshold_exceeded is None or not state.ecc_mode:
        raise Refusal(Code.NOT_SUPPORTED)
    of_life = 0, state.ecc_lifetime_uncorrected_sram, state.ecc_lifetime_corrected_sram
    volatile = 0, state.ecc_uncorrected_sram, state.ecc_corrected_sram
    buckets = state.ecc_lifetime_uncorrected_sram, 0, 0, 0, 0
    counts = (whole(count or 0, "Q") for count in (*of_life, *volatile, *buckets))
    put(out, _SRAM_STATUS, *take(out, UINT), *counts, whole(state.ecc_threshold_exceeded, "I"))


@getter("nvmlDeviceGetRemappedRows", "I", "I", "I", "I")
def remapped_rows(device: SimGpu) -> tuple[float | None, ...]:
    state = device.state
    return state.remap_correctable, state.remap_uncorrectable, state.remap_pending, state.remap_failed


@getter("nvmlDeviceGetRowRemapperHistogram", "IIIII")
def spare_rows(device: SimGpu) -> tuple[float | None, ...]:
    """Return the numbers of memory banks with all, most, some, few and none of their spare rows left."""
    state = device.state
    left = state.remap_banks_max, state.remap_banks_high, state.remap_banks_partial
    return *left, state.remap_banks_low, state.remap_banks_none


@device_function("nvmlDeviceGetRepairStatus", "versioned 4", since=(580,))
def repair_status(device: SimGpu, out: int | None) -> None:
    """Write nvmlRepairStatus_t: whether the repair of a memory channel, and of a TPC, is pending."""
    check_version(out, 1, _REPAIR.size)
    pending = device.state.repair_channel, device.state.repair_tpc
    if None in pending:
        raise Refusal(Code.NOT_SUPPORTED)
    put(out, _REPAIR, *take(out, UINT), *(whole(flag or 0, "I") for flag in pending))


@device_function("nvmlDeviceGetUnrepairableMemoryFlag_v1", "versioned 4", since=(580, 159))
def unrepairable_memory(device: SimGpu, out: int | None) -> None:
    """Write nvmlUnrepairableMemoryStatus_v1_t. It is documented from 590 on, and in the library 580.159."""
    check_version(out, 1, _UNREPAIRABLE.size)
    if device.state.repair_impossible is None:
        raise Refusal(Code.NOT_SUPPORTED)
    put(out, _UNREPAIRABLE, *take(out, UINT), whole(device.state.repair_impossible, "I"))


getter("nvmlDeviceGetRetiredPagesPendingStatus", "I")(lambda device: device.state.retired_pending)


@device_function("nvmlDeviceGetRetiredPages", "u4", "list 8")
def retired_pages(device: SimGpu, cause: int, size: int | None, addresses: int | None) -> None:
    """Write the number of retired pages and, if `addresses` is not NULL, invented addresses of these pages.

    `cause` is 0 for corrected errors and 1 for uncorrected errors. `size` points to the size of the array; the
    number is written there. Raise Refusal (INSUFFICIENT_SIZE) if the array is too small.
    """
    state = device.state
    if cause > 1:
        raise Refusal(Code.INVALID_ARGUMENT)
    pages = state.retired_uncorrected if cause else state.retired_corrected
    if pages is None:
        raise Refusal(Code.NOT_SUPPORTED)
    (room,) = take(size, UINT)
    put(size, UINT, int(pages))
    if addresses and room < pages:
        raise Refusal(Code.INSUFFICIENT_SIZE)
    for n in range(int(pages) if addresses else 0):
        put((addresses or 0) + 8 * n, struct.Struct("<Q"), (n + 1) << 16)
