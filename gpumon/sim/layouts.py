"""Layouts of the structs in which a call puts many things at once, as NVML's header has them."""

from __future__ import annotations

import struct

POINTER, UINT = struct.Struct("<Q"), struct.Struct("<I")
FIELD_VALUE = struct.Struct("<IIqqiI8s")
"""Number, scope, time (µs), latency (µs), type, return code, value."""
EVENT_DATA = struct.Struct("<QQQII")
"""Device, type, datum, GPU instance, compute instance."""
METRICS_HEAD = struct.Struct("<IIQQ")
"""Version, number of metrics, first and second sample."""
METRIC = struct.Struct("<IidQQQ")
"""Number, return code, value; pointers to short name, long name and unit, which are the library's own."""
METRIC_ANSWER = struct.Struct("<Id")
"""What of a metric is answered."""
