"""The configuration: one table of settings, read from a file, the environment and flags."""
