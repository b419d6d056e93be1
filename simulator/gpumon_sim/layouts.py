"""Layouts of numbers and pointers, and of NVML's structs for field values, events and GPM metrics."""

from __future__ import annotations

import struct

POINTER, UINT, INT = struct.Struct("<Q"), struct.Struct("<I"), struct.Struct("<i")
FIELD_VALUE = struct.Struct("<IIqqiI8s")
"""nvmlFieldValue_t: id, scope, time (µs), latency (µs), type, return code, value."""
EVENT_DATA = struct.Struct("<QQQII")
"""nvmlEventData_t: device, type, data, GPU instance, compute instance."""
METRICS_HEAD = struct.Struct("<IIQQ")
"""First members of nvmlGpmMetricsGet_t: version, number of metrics, first and second sample."""
METRIC = struct.Struct("<IidQQQ")
"""nvmlGpmMetric_t: id, return code, value, and pointers to the short name, long name and unit in library memory."""
METRIC_ANSWER = struct.Struct("<Id")
"""The output part of nvmlGpmMetric_t: return code, value."""
