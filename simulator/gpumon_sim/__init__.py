"""Simulates a GPU node: replaces NVML's C library, which an unmodified pynvml calls, and files of sysfs and procfs.

The answers depend on a profile (the hardware), a scenario file (jobs and faults) and the time, or on a recording.
"""

__version__ = "0.1.0"
