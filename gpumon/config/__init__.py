"""The configuration: one table of settings, read from file, environment and flags. Used by cli and daemon only."""
