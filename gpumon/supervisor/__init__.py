"""Supervision of child processes: starts, reads, times, kills and reaps them, or abandons them if SIGKILL fails.

The code runs in the daemon's main thread, which never blocks. exec_shim.py and subreaper.py run as separate programs.
"""
