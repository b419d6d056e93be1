"""Runs probes: decides when a run begins, starts and ends its ranks, and contains the processes that they start."""
