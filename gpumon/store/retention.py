"""Deletes rows that are too old or too many. Counters are never deleted."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from gpumon.store import error_events, probe_runs, verdicts
from gpumon.store.stored_rows import checked, readable

DAY = 86400.0
MAX_STEP_SECONDS = 6 * 3600.0
"""Maximum seconds by which the time of pruning may advance between two prunings, which are an hour apart. So a wrong
clock deletes few rows.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Limits, in days and in rows, for stored events, verdict transitions and probe runs."""

    days: float = 90
    rows: int = 100_000
    """Maximum number of events, of verdict transitions and of probe runs."""


def prune(connection: sqlite3.Connection, retention: Retention, now: float) -> None:
    """Delete events, verdict transitions and probe runs beyond the retention. `now` is in seconds since the epoch."""
    oldest = _plausible(connection, now) - retention.days * DAY
    error_events.prune(connection, oldest, retention.rows)
    verdicts.prune(connection, oldest, retention.rows)
    probe_runs.prune(connection, oldest, retention.rows)


def _plausible(connection: sqlite3.Connection, now: float) -> float:
    """Return `now`, but at most MAX_STEP_SECONDS after the last pruning. A clock may be days ahead at boot."""
    rows = connection.execute("SELECT value FROM meta WHERE key = 'pruned'")
    last = next(readable("meta", rows, lambda row: checked(float, row[0])), now)
    plausible = min(now, last + MAX_STEP_SECONDS)
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('pruned', ?)", (str(plausible),))
    return plausible
