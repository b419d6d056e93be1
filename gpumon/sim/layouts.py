"""Layouts of the structs that NVML uses for batches of fields, events and GPM metrics, from NVML's header."""

from __future__ import annotations

import struct

POINTER, UINT = struct.Struct("<Q"), struct.Struct("<I")
FIELD_VALUE = struct.Struct("<IIqqiI8s")
"""nvmlFieldValue_t: id, scope, time (µs), latency (µs), type, return code, value."""
EVENT_DATA = struct.Struct("<QQQII")
"""nvmlEventData_t: device, type, data, GPU instance, compute instance."""
METRICS_HEAD = struct.Struct("<IIQQ")
"""First members of nvmlGpmMetricsGet_t: version, number of metrics, first and second sample."""
METRIC = struct.Struct("<IidQQQ")
"""nvmlGpmMetric_t: id, return code, value; pointers to short name, long name and unit, which belong to the library."""
METRIC_ANSWER = struct.Struct("<Id")
"""The output part of nvmlGpmMetric_t: return code, value."""
