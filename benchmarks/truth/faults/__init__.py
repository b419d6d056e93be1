"""TABLE: every fault that is injected, where it can happen, and its expected verdict."""

from __future__ import annotations

from benchmarks.truth.fault import FaultRow
from benchmarks.truth.faults import agent, allreduce, heat, links, memory, ports, unreadable, work, xids

FAULTS: tuple[FaultRow, ...] = (
    *unreadable.rows(),
    *xids.rows(),
    *memory.rows(),
    *heat.rows(),
    *links.rows(),
    *ports.rows(),
    *work.rows(),
    *allreduce.rows(),
    *agent.rows(),
)
