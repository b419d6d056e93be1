"""Simulates a GPU node by replacing NVML's C library below an unmodified pynvml.

The answers of a simulated node depend on a profile (the hardware), a scenario file (jobs and faults) and the time.
"""
