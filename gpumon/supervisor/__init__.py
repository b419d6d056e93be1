"""Supervision of child processes: starts, reads, times, kills, reaps or abandons each of them.

The code runs in the daemon's main thread, which never blocks.
"""
