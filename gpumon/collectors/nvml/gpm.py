"""Read the activity of a GPU's engines with GPM (GPU performance monitoring, Hopper and later).

Each GPU or GPU instance has two samples, which are allocated once. Each reading overwrites the older one, without
waiting. Only one thread takes samples, because concurrent use has crashed kernels. Samples are freed before NVML is
shut down, because they are valid only until then.
"""

from __future__ import annotations

import ctypes
import logging
import math
from collections.abc import Mapping
from typing import Any

from gpumon.clock import boot_clock
from gpumon.collectors.nvml.device import AbsentError, Device
from gpumon.collectors.nvml.library import NO_PERMISSION, UNSUPPORTED, NvmlError

log = logging.getLogger("gpumon.collectors.nvml")

METRICS: Mapping[str, int] = {
    "GRAPHICS_UTIL": 1,
    "SM_UTIL": 2,
    "SM_OCCUPANCY": 3,
    "INTEGER_UTIL": 4,
    "ANY_TENSOR_UTIL": 5,
    "DRAM_BW_UTIL": 10,
    "FP64_UTIL": 11,
    "FP32_UTIL": 12,
    "FP16_UTIL": 13,
    "PCIE_TX_PER_SEC": 20,
    "PCIE_RX_PER_SEC": 21,
}
"""NVML's ids of GPM metrics, which are the same in every driver so far. Except for RATES, values are percentages."""
RATES = frozenset({"PCIE_TX_PER_SEC", "PCIE_RX_PER_SEC"})
"""GPM metrics whose unit is MiB per second."""
FULL, ROUNDING = 100.0, 1.0
"""Percentages above FULL by at most ROUNDING are set to FULL: engines are not sampled at the same moment."""

MIN_ZEROS = 3
"""Polls in a row after which zeros of all engines are wrong: the utilization may lag behind the end of a kernel."""
MIN_SECONDS = 0.1
"""Min time in seconds between two samples, from NVML's header."""
RETRY_SECONDS = 60.0
"""Seconds until GPM is tried again after the driver denied permission. Permission may change at run time."""

_VERSION = 1


class _Metric(ctypes.Structure):
    _fields_ = (
        ("metric", ctypes.c_uint),
        ("code", ctypes.c_uint),
        ("value", ctypes.c_double),
        ("names", ctypes.c_void_p * 3),
    )


class _MetricsGet(ctypes.Structure):
    """The C struct nvmlGpmMetricsGet_t with a shorter array. Drivers read only the first `count` metrics."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("before", ctypes.c_void_p),
        ("after", ctypes.c_void_p),
        ("metrics", _Metric * len(METRICS)),
    )


class _Support(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint), ("supported", ctypes.c_uint))


class SamplePair:
    """The two GPM samples of a GPU, or of its GPU instance with id `instance`, and the metrics computed from them."""

    def __init__(self, gpu: Device, instance: int | None = None) -> None:
        self._gpu = gpu
        self._instance = instance
        self._question = _MetricsGet(_VERSION, len(METRICS))
        for entry, metric in zip(self._question.metrics, METRICS.values(), strict=True):
            entry.metric = metric
        self._samples: list[ctypes.c_void_p] = []
        """The two samples, the newer one last. The older one is overwritten next."""
        self._taken_at: float | None = None
        self._supported: bool | None = None
        """Whether the driver supports GPM on this device; None until it was queried."""
        self._error: NvmlError | None = None
        """The error of the last `read`; None if it succeeded."""
        self.values: Mapping[str, float] = {}
        """Value of each metric in METRICS between the last two samples. Metrics without a value are left out."""

    def read(self) -> None:
        """Take a sample, and compute `values` from it and the sample before; after the first sample they are empty.

        Do nothing if the driver does not support GPM on this device, or if the last sample is younger than MIN_SECONDS.
        If a call fails, raise NvmlError and begin again with a first sample next time.
        """
        now = boot_clock()
        if self._taken_at is not None and now - self._taken_at < MIN_SECONDS:
            return  # too early: the last values stay valid
        self._error = None
        try:
            if self._supported is None:
                support = _Support(_VERSION)
                self._call("nvmlGpmQueryDeviceSupport", self._gpu.handle, ctypes.byref(support))
                self._supported = bool(support.supported)
            if self._supported:
                self._sample(now)
        except NvmlError as error:
            if self._supported is None and error.code in UNSUPPORTED:
                self._supported = False
                return
            self._taken_at, self.values, self._error = None, {}, error
            raise

    def value(self, metric: str) -> float:
        """Return the value of a metric. Raise AbsentError if it has none, and NvmlError if the last `read` failed."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        if metric not in self.values:
            raise AbsentError
        return self.values[metric]

    def _sample(self, now: float) -> None:
        while len(self._samples) < 2:
            sample = ctypes.c_void_p()
            self._call("nvmlGpmSampleAlloc", ctypes.byref(sample))
            self._samples.append(sample)
        older, newer = self._samples
        if self._instance is None:
            self._call("nvmlGpmSampleGet", self._gpu.handle, older)
        else:
            self._call("nvmlGpmMigSampleGet", self._gpu.handle, ctypes.c_uint(self._instance), older)
        self._samples.reverse()
        first, self._taken_at = self._taken_at is None, now
        self.values = {} if first else self._metrics(newer, older)

    def _metrics(self, before: ctypes.c_void_p, after: ctypes.c_void_p) -> Mapping[str, float]:
        self._question.before, self._question.after = before, after
        for entry in self._question.metrics:
            entry.code, entry.value = 0, math.nan
        self._call("nvmlGpmMetricsGet", ctypes.byref(self._question))
        return {
            name: FULL if FULL < entry.value <= FULL + ROUNDING and name not in RATES else entry.value
            for name, entry in zip(METRICS, self._question.metrics, strict=True)
            if not entry.code and not math.isnan(entry.value)
        }

    def _call(self, function: str, *arguments: Any) -> None:
        self._gpu.library.raw(function, *arguments, bus_id=self._gpu.bus_id)

    def free(self) -> None:
        """Free the samples and discard the values. The next `read` determines support again."""
        while self._samples:
            try:
                self._call("nvmlGpmSampleFree", self._samples.pop())
            except NvmlError as error:
                log.debug("cannot free a GPM sample", extra={"pci_bus_id": self._gpu.bus_id, "error": error.name})
        self._taken_at, self.values, self._error, self._supported = None, {}, None, None


class Monitoring:
    """Reads the GPM metrics of one GPU. Detects missing support, missing permission and implausible zeros."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pair = SamplePair(device)
        self._retry_at = 0.0
        """Boot clock from which a sample is taken; infinity if the driver answered that it cannot take one."""
        self._zeros = 0
        """Number of polls in a row in which all engines reported 0 while kernels ran."""
        self._silent = False
        self.value = self._pair.value

    def read(self) -> None:
        """Take a GPM sample, unless that is unsupported or denied. Raise GpuFaultError if the whole GPU fails."""
        if boot_clock() < self._retry_at:
            return
        try:
            self._pair.read()
        except NvmlError as error:
            self._device.judge(error)
            if error.code in UNSUPPORTED:
                self._pair.free()
                self._retry_at = math.inf
            elif error.code == NO_PERMISSION:
                self._retry_at = boot_clock() + RETRY_SECONDS

    def is_silent(self, utilization: float | None, processes: float | None) -> bool:
        """Return True if GPM reports 0 for all engines, although kernels ran in this poll and in the ones before.

        Some drivers report such zeros after an Xid, or after days of operation. `utilization`: share of time in which
        a kernel ran, 0 to 1; None if unknown. `processes`: number of processes on the GPU; None if unknown. Without a
        process the zeros are right and the utilization is latched. Each result True is also counted as an error.
        """
        if not self._pair.values:
            self._zeros = 0
            return False
        zeros = not any(value for name, value in self._pair.values.items() if name not in RATES)
        self._zeros = self._zeros + 1 if zeros and utilization and processes != 0 else 0
        silent = self._zeros >= MIN_ZEROS
        detail = {"pci_bus_id": self._device.bus_id}
        if silent:
            self._device.count("SilentZero")
        if silent and not self._silent:
            log.warning(
                "all engines report 0 while kernels run: engine activity is left out until that ends", extra=detail
            )
        elif self._silent and not silent:
            log.info("engine activity is reported again", extra=detail)
        self._silent = silent
        return silent

    def close(self) -> None:
        """Free the samples. The next `read` determines support and permission again."""
        self._retry_at = 0.0
        self._pair.free()
