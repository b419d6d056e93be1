"""Deletes rows that are too old or too many. Counters are kept for ever."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from gpumon.store import error_events, probe_runs, verdicts

DAY = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long events, verdict transitions and probe runs are kept."""

    days: float = 90
    rows: int = 100_000
    """Maximum number of rows of each kind."""


def prune(connection: sqlite3.Connection, retention: Retention, now: float) -> None:
    """Delete what the retention does not cover. `now`: seconds since the epoch."""
    oldest = now - retention.days * DAY
    error_events.prune(connection, oldest, retention.rows)
    verdicts.prune(connection, oldest, retention.rows)
    probe_runs.prune(connection, oldest, retention.rows)
