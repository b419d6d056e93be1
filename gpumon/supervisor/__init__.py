"""Supervision of child processes: starts, reads, times, kills, reaps or abandons each of them.

The code runs in the daemon's main thread, which never blocks. exec_shim.py and subreaper.py are programs of their own.
"""
