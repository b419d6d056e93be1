"""Supervision of child processes: starts them, reads their output, detects hangs, kills and reaps them.

A child that SIGKILL does not end is abandoned.

The code runs in the thread of the event loop (loop.py), the daemon's main thread. exec_shim.py and subreaper.py run as
separate programs.
"""
