"""Run probes: decide when a run begins, start and end its ranks, and contain the processes that they start."""
