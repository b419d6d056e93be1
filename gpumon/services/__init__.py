"""Stateful services on the daemon's loop: persistence, error events, verdicts, releases and other time windows."""
