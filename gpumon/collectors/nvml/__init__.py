"""Read GPUs through NVML. These calls run only in the sampler child, because a driver call may never return."""
