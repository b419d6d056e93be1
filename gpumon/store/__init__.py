"""The store: state that survives a restart, in one SQLite file."""
