"""Starts, reads, times, kills, reaps or abandons every child. Runs in the daemon's main thread, which never blocks."""
