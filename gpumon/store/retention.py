"""Deletes the oldest events, verdict transitions and probe runs. Counters are never deleted."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from gpumon.store import error_events, probe_runs, verdicts
from gpumon.store.stored_rows import readable, validate

DAY = 86400.0
MAX_STEP_SECONDS = 6 * 3600.0
"""Maximum seconds by which the time used for pruning may advance from one pruning to the next, an hour later. Thus few
rows are deleted if the clock is wrong.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Limits, in days and in rows, for stored events, verdict transitions and probe runs."""

    days: float = 90
    rows: int = 100_000
    """Maximum number of rows in each of the three tables."""


def prune(connection: sqlite3.Connection, retention: Retention, now: float) -> None:
    """Delete events, verdict transitions and probe runs beyond the retention. `now` is in seconds since the epoch."""
    oldest = _plausible(connection, now) - retention.days * DAY
    error_events.prune(connection, oldest, retention.rows)
    verdicts.prune(connection, oldest, retention.rows)
    probe_runs.prune(connection, oldest, retention.rows)


def _plausible(connection: sqlite3.Connection, now: float) -> float:
    """Return `now`, but at most MAX_STEP_SECONDS after the last pruning: at boot the clock may be days ahead.

    Store the result in table `meta` as the time of this pruning.
    """
    rows = connection.execute("SELECT value FROM meta WHERE key = 'pruned'")
    last = next(readable("meta", rows, lambda row: validate(float, row[0])), now)
    plausible = min(now, last + MAX_STEP_SECONDS)
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('pruned', ?)", (str(plausible),))
    return plausible
