"""The stateful parts on the daemon's loop: persistence, events, verdicts, time windows."""
