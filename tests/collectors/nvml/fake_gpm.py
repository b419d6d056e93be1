"""A simulated GPM that returns configured values and records the use of its samples."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field
from typing import Any

HEAD, METRIC = struct.Struct("<IIQQ"), struct.Struct("<IId24x")  # nvmlGpmMetricsGet_t, nvmlGpmMetric_t
NO_PERMISSION, NOT_SUPPORTED = 4, 3


@dataclass
class FakeGpm:
    """`value` is the result of every metric; `values` and `codes` are those of single metrics, by number."""

    value: float = 50.0
    values: dict[int, float] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)
    supported: int = 1
    refusal: int = 0
    """Return code of taking a sample."""
    living: set[int] = field(default_factory=set)
    asked: list[tuple[int, int, int]] = field(default_factory=list)
    """For each read of two samples: number of metrics, earlier sample, later sample."""
    taken: list[int] = field(default_factory=list)
    made: int = 0

    def functions(self) -> dict[str, Any]:
        return {
            "nvmlGpmQueryDeviceSupport": self._support,
            "nvmlGpmSampleAlloc": self._alloc,
            "nvmlGpmSampleFree": self._free,
            "nvmlGpmSampleGet": self._take,
            "nvmlGpmMetricsGet": self._metrics,
        }

    def _support(self, _handle: int, out: int) -> int:
        ctypes.memmove(out + 4, struct.pack("<I", self.supported), 4)
        return 0

    def _alloc(self, out: int) -> int:
        self.made += 1
        sample = 0x7A00_0000_0000 | self.made
        self.living.add(sample)
        ctypes.memmove(out, struct.pack("<Q", sample), 8)
        return 0

    def _free(self, sample: int) -> int:
        self.living.remove(sample)
        return 0

    def _take(self, _handle: int, sample: int) -> int:
        assert sample in self.living
        self.taken.append(sample)
        return self.refusal

    def _metrics(self, address: int) -> int:
        version, count, before, after = HEAD.unpack(ctypes.string_at(address, HEAD.size))
        assert version == 1
        assert {before, after} <= self.living
        self.asked.append((count, before, after))
        for n in range(count):
            at = address + HEAD.size + n * METRIC.size
            number, *_ = METRIC.unpack(ctypes.string_at(at, METRIC.size))
            value = self.values.get(number, self.value)
            ctypes.memmove(at, METRIC.pack(number, self.codes.get(number, 0), value), 16)
        return 0
