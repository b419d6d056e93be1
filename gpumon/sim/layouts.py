"""Layouts of the structs of batch calls, from NVML's header."""

from __future__ import annotations

import struct

POINTER, UINT = struct.Struct("<Q"), struct.Struct("<I")
FIELD_VALUE = struct.Struct("<IIqqiI8s")
"""Id, scope, time (µs), latency (µs), type, return code, value."""
EVENT_DATA = struct.Struct("<QQQII")
"""Device, type, data, GPU instance, compute instance."""
METRICS_HEAD = struct.Struct("<IIQQ")
"""Version, number of metrics, first and second sample."""
METRIC = struct.Struct("<IidQQQ")
"""Id, return code, value; pointers to short name, long name and unit, which belong to the library."""
METRIC_ANSWER = struct.Struct("<Id")
"""The output part of a metric."""
