"""Rows of runs of the probes. Inside the caller's transaction."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from gpumon.probe.core.result import ProbeResult, from_document

log = logging.getLogger("gpumon.store")

_WITHOUT_LOG = "CASE WHEN json_valid(document) THEN json_remove(document, '$.log') ELSE document END"
"""One document that is no JSON, as an earlier agent wrote what is not a number, must not cost the whole page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuery:
    """Which runs; None is any."""

    id: str | None = None
    probe: str | None = None
    since: float | None = None
    until: float | None = None
    """Seconds since the epoch: the run began between them."""
    before: tuple[float, int] | None = None
    """Place of the last run of the page before."""
    limit: int = 100

    def matches(self, result: ProbeResult) -> bool:
        """What the store's own search would say, but for the place."""
        return (
            self.id in (None, result.id)
            and self.probe in (None, result.probe)
            and (self.since is None or result.started > self.since)
            and (self.until is None or result.started < self.until)
        )


@dataclass(frozen=True, slots=True)
class RunPage:
    """So many as were asked for, the newest first."""

    results: tuple[ProbeResult, ...] = ()
    """Without logs, unless one was asked for by its id. Those that cannot be read are left out."""
    last: tuple[float, int] | None = None
    """Place of the last of them in the order of all; None: there are no more."""


def find(connection: sqlite3.Connection, query: RunQuery) -> RunPage:
    """One page of them."""
    conditions = dict(_conditions(query))
    document = "document" if query.id is not None else _WITHOUT_LOG
    rows = connection.execute(
        f"SELECT id, {document}, started, number FROM probe_results"  # noqa: S608 - our own names
        f" WHERE {' AND '.join(conditions) or 'TRUE'} ORDER BY started DESC, number DESC LIMIT ?",
        (*(value for values in conditions.values() for value in values), query.limit),
    ).fetchall()
    last = rows[-1][2:] if len(rows) == query.limit else None
    return RunPage(tuple(readable((run, text) for run, text, *_ in rows)), last)


def _conditions(query: RunQuery) -> Iterator[tuple[str, tuple[object, ...]]]:
    if query.id is not None:
        yield "id = ?", (query.id,)
    if query.probe is not None:
        yield "probe = ?", (query.probe,)
    if query.since is not None:
        yield "started > ?", (query.since,)
    if query.until is not None:
        yield "started < ?", (query.until,)
    if query.before is not None:
        yield "(started, number) < (?, ?)", query.before


def readable(rows: Iterable[tuple[str, str]]) -> Iterator[ProbeResult]:
    """Results from their ids and documents; one that cannot be read is told in the log."""
    for run, text in rows:
        try:
            yield from_document(json.loads(text))
        except (TypeError, ValueError, RecursionError) as error:
            _tell(run, str(error))


@lru_cache(maxsize=1000)
def _tell(run: str, error: str) -> None:
    """Once, however often somebody asks for it."""
    log.warning("a stored probe result cannot be read", extra={"id": run, "error": error})
