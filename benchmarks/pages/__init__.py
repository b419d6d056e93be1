"""Counts the notifications that leave Alertmanager for each fault: `make pages`."""
