"""Stateful services that run on the daemon's loop: persistence, error events, verdicts, time windows, notifications."""
