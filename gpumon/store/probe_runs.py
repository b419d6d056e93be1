"""Tables `probe_runs` and `probe_counters`. Counters are kept when runs are deleted."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpumon.probe.core.result import ProbeCounters, ProbeResult, from_document, to_document
from gpumon.store.stored_rows import Count, count_of, matching, readable, validate

MAX_BASELINE_RUNS = 200
"""Number of ok runs of each probe that the retention never deletes, because the baseline is computed from them."""
_RANKED = (
    "ranked AS (SELECT number, outcome AS ending,"
    " row_number() OVER (PARTITION BY probe, outcome ORDER BY number DESC) AS place,"
    " row_number() OVER (PARTITION BY probe ORDER BY number DESC) AS newest FROM probe_runs)"
)
"""SQL that numbers the runs of each probe twice, 1 being the newest: `place` among the runs with the same outcome,
`newest` among all runs.
"""
_CONDITIONS = {
    "id": "id = :id",
    "probe": "probe = :probe",
    "since": "started > :since",
    "until": "started < :until",
    "before": "(started, number) < (:before_wall, :before_number)",
}
"""SQL for the conditions of RunQuery, by field."""
_WITHOUT_LOG = "CASE WHEN json_valid(run) THEN json_remove(run, '$.log') ELSE run END"
"""SQL for the JSON in column `run` without its member `log`. Invalid JSON remains as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuery:
    """A search for stored probe runs. A condition that is None matches any run."""

    id: str | None = None
    probe: str | None = None
    since: float | None = None
    until: float | None = None
    """Unix time in seconds. Runs match if they started between `since` and `until`."""
    before: tuple[float, int] | None = None
    """Place (RunPage.last) of the last run of the previous page; None for the first page."""
    limit: int = 100

    def matches(self, result: ProbeResult) -> bool:
        """Return True if `result` meets all conditions of this query except `before` and `limit`."""
        return (
            self.id in (None, result.id)
            and self.probe in (None, result.probe)
            and (self.since is None or result.started > self.since)
            and (self.until is None or result.started < self.until)
        )


@dataclass(frozen=True, slots=True)
class RunPage:
    """One page of the probe runs that match a RunQuery."""

    results: tuple[ProbeResult, ...] = ()
    """The runs, the newest first. They have no logs, unless the query names an id. Unreadable runs are left out."""
    last: tuple[float, int] | None = None
    """Place of the page's last run in the order of all runs: Unix time of its start, and row number. None if the page
    is not full, because then it is the last page.
    """


def record(connection: sqlite3.Connection, result: ProbeResult) -> None:
    """Store a probe run and add it to the counters. Do nothing if its id is already stored."""
    reason = result.reason if result.outcome == "skipped" else ""
    added = connection.execute(
        "INSERT OR IGNORE INTO probe_runs (id, probe, started, outcome, run) VALUES (?, ?, ?, ?, ?)", _row(result)
    )
    if added.rowcount:
        connection.execute(
            "INSERT INTO probe_counters VALUES (?, ?, ?, 1)"  # noqa: S608 - our own names
            f" ON CONFLICT (probe, outcome, reason) DO UPDATE SET count = {count_of('count')} + 1",
            (result.probe, result.outcome, reason),
        )


def restore(
    connection: sqlite3.Connection, results: Iterable[ProbeResult], counters: Mapping[str, ProbeCounters]
) -> None:
    """Store runs that are missing. Set each stored counter to the given one, by name of the probe, if that is higher.

    A missing run that is older than the newest stored one was deleted by the retention, and is not stored again.
    """
    for result in sorted(results, key=lambda result: result.started):
        connection.execute(
            "INSERT OR IGNORE INTO probe_runs (id, probe, started, outcome, run) SELECT ?, ?, ?, ?, ?"
            " WHERE NOT EXISTS (SELECT 1 FROM probe_runs WHERE probe = ? AND started > ?)",
            (*_row(result), result.probe, result.started),
        )
    connection.executemany(
        "INSERT INTO probe_counters VALUES (?, ?, ?, ?) ON CONFLICT (probe, outcome, reason)"  # noqa: S608 - our own names
        f" DO UPDATE SET count = max({count_of('count')}, excluded.count)",
        [row for probe, counts in counters.items() for row in _counter_rows(probe, counts) if row[3]],
    )


def _counter_rows(probe: str, counters: ProbeCounters) -> Iterator[tuple[str, str, str, int]]:
    for outcome, count in counters.outcomes.items():
        if outcome != "skipped":
            yield probe, outcome, "", count
    for reason, count in counters.reasons.items():
        yield probe, "skipped", reason, count


def read_counters(connection: sqlite3.Connection) -> Mapping[str, ProbeCounters]:
    """Return the numbers of runs by outcome, by name of the probe."""
    stored = connection.execute("SELECT probe, outcome, reason, count FROM probe_counters")
    outcomes: dict[str, dict[str, int]] = {}
    reasons: dict[str, dict[str, int]] = {}
    for probe, outcome, reason, count in readable(
        "probe_counters", stored, lambda row: validate(tuple[str, str, str, Count], row)
    ):
        counts = outcomes.setdefault(probe, {})
        counts[outcome] = counts.get(outcome, 0) + count
        reasons.setdefault(probe, {}).update({reason: count} if reason else {})
    return {probe: ProbeCounters(outcomes=counts, reasons=reasons[probe]) for probe, counts in outcomes.items()}


def read_recent(connection: sqlite3.Connection, *, newest: int, each: int) -> tuple[ProbeResult, ...]:
    """Return runs of each probe, the newest last.

    For each probe these are the last `newest` runs, the last `each` runs with each outcome except skipped, and the last
    MAX_BASELINE_RUNS runs with the outcome ok.
    """
    rows = connection.execute(
        f"WITH {_RANKED} SELECT id, run FROM probe_runs JOIN ranked USING (number)"  # noqa: S608 - our own names
        " WHERE newest <= ? OR (place <= ? AND ending != 'skipped') OR (place <= ? AND ending = 'ok')"
        " ORDER BY number",
        (newest, each, MAX_BASELINE_RUNS),
    )
    return tuple(readable("probe_runs", rows, _result))


def find(connection: sqlite3.Connection, query: RunQuery) -> RunPage:
    """Return the newest runs that match the query, at most `query.limit`."""
    where, parameters = matching(query, _CONDITIONS)
    column = "run" if query.id is not None else _WITHOUT_LOG
    rows = connection.execute(
        f"SELECT id, {column}, started, number FROM probe_runs"  # noqa: S608 - our own names
        f" WHERE {where} ORDER BY started DESC, number DESC LIMIT :limit",
        parameters,
    ).fetchall()
    last = rows[-1][2:] if len(rows) == query.limit else None
    return RunPage(tuple(readable("probe_runs", rows, _result)), last)


def prune(connection: sqlite3.Connection, oldest: float, limit: int) -> None:
    """Delete runs that started before `oldest` (Unix time), and the oldest runs beyond `limit` rows.

    For each probe, the newest run with each outcome and the newest MAX_BASELINE_RUNS ok runs are kept.
    """
    connection.execute(
        "DELETE FROM probe_runs WHERE (started < ? OR number <= (SELECT max(number) FROM probe_runs) - ?)"  # noqa: S608
        f" AND number NOT IN (WITH {_RANKED}"
        " SELECT number FROM ranked WHERE place = 1 OR (place <= ? AND ending = 'ok'))",
        (oldest, limit, MAX_BASELINE_RUNS),
    )


def _row(result: ProbeResult) -> tuple[object, ...]:
    document = json.dumps(to_document(result), separators=(",", ":"))
    return result.id, result.probe, result.started, result.outcome, document


def _result(row: Sequence[Any]) -> ProbeResult:
    return from_document(json.loads(row[1]))
