"""What survives a restart, in one SQLite file: events, counters, verdicts, the inventory, probe results."""

APPLICATION_ID = 0x67706D6E
"""Stands in the header of every store ("gpmn"): a file without it belongs to another program and is left alone."""
