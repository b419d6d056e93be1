"""Read NVML, links and the kernel log. The daemon runs only `kernel_log`; the others run in child processes."""
