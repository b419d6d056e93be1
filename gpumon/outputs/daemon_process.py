"""The metric families of the daemon's own process, from the collectors of prometheus_client."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest

_REGISTRY = CollectorRegistry()
ProcessCollector(registry=_REGISTRY)
PlatformCollector(registry=_REGISTRY)
GCCollector(registry=_REGISTRY)


def daemon_process() -> bytes:
    """Return the current process_*, python_info and python_gc_* families in text format 0.0.4."""
    return generate_latest(_REGISTRY)
