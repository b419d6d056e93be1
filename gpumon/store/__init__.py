"""What survives a restart, in one SQLite file: Xid events and counters, probe results and their counters."""
