"""The host child process. It reads ports, services, processes and schedulers from sysfs, procfs and other files.

Any of these reads may block for ever, so the daemon does not make them itself.
"""
