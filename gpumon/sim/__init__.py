"""Simulates a GPU node: replaces NVML's C library, which an unmodified pynvml calls.

The answers of a simulated node depend on a profile (the hardware), a scenario file (jobs and faults) and the time.
"""
