"""Supervision of child processes: starts them, reads their output, detects hangs, kills and reaps them.

A child that SIGKILL does not end is abandoned.

The code runs in the daemon's main thread, which never blocks. exec_shim.py and subreaper.py run as separate programs.
"""
