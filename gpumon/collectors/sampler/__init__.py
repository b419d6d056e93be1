"""The sampler child process, which reads the GPUs through NVML.

It reads its orders (the configuration) from standard input, then writes messages in JSON to standard output.
"""
