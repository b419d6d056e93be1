"""Runs probes: schedule, preflight, ranks and their containment."""
