"""Code that reads NVML, network ports, services, processes, job schedulers and the kernel log.

The daemon itself runs only `kernel_log`, and child processes run the rest. Commands of the command line, such as
`gpumon doctor` and `gpumon xid`, also run parts of it.
"""
