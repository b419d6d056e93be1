"""The sampler child process, which reads the GPUs through NVML.

It reads its orders (the configuration), then the daemon's requests, from standard input, and writes messages in JSON to
standard output. It ends when standard input closes.
"""
