"""The sampler child process, which reads the GPUs through NVML. It reads its orders once, then writes JSON frames."""
