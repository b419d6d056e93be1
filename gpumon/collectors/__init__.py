"""Code that reads NVML, links and the kernel log. The daemon runs only `kernel_log`; child processes run the rest."""
