"""What survives a restart, in one SQLite file: events, counters, verdicts, the inventory, probe results."""
