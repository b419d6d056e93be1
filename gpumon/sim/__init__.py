"""A simulated node below pynvml: NVML's C functions, answered from a profile, a scenario file and the time."""
