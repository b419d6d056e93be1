"""Simulation of a GPU node: it replaces NVML's C library below an unmodified pynvml.

A simulated node answers from a profile (the hardware), a scenario file (jobs and faults) and the time.
"""
