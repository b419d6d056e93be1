"""TABLE: every fault, with its steps, its verdict and where it can happen.

A fault that is a value of one key of the scenario file is with its key. The modules here have those of several keys or
steps, with lines of the kernel log, acts, settings, or two notifications.
"""

from __future__ import annotations

from gpumon_sim.faults import agent, allreduce, jobs, links, ports, unreadable, work, xids
from gpumon_sim.faults.keys import KEYS
from gpumon_sim.faults.row import FaultRow

FAULTS: tuple[FaultRow, ...] = (
    *unreadable.rows(),
    *(fault for key in KEYS.values() for fault in key.faults),
    *xids.rows(),
    *links.rows(),
    *ports.rows(),
    *work.rows(),
    *jobs.rows(),
    *allreduce.rows(),
    *agent.rows(),
)
"""In the order of docs/truth.md."""
