"""Frozen dataclasses that all other packages share: readings (also the metric tables), messages and records."""
