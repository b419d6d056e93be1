"""Sources: NVML, links and the kernel log. The daemon imports only `kernel_log`; the others run in child processes."""
