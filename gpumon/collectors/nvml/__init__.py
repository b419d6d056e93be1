"""Code that reads GPUs through NVML. It runs only in the sampler child, because a driver call may never return."""
