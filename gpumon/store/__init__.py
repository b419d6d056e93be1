"""The store: state that survives a restart, in one SQLite file.

It contains error events, counters, verdicts, the inventory, probe runs, time windows, agent runs, notified alerts and
the audit log.
"""

APPLICATION_ID = 0x67706D6E
"""Application id in the SQLite header of every store ("gpmn"). A file without it is damaged or not a store."""
