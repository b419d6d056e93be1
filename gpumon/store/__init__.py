"""What survives a restart, in one SQLite file: events, counters, verdicts, the inventory, probe runs, time windows."""

APPLICATION_ID = 0x67706D6E
"""Application id in the header of every store ("gpmn"). A file without it belongs to another program."""
