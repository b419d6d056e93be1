"""Table `allocations`: one row for each time that an owner held a GPU, with the use that the owner made of it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from gpumon.model.allocation import MAX_HELD, Allocation
from gpumon.store.stored_rows import matching, readable, validate

_CONDITIONS = {"uuid": "uuid = :uuid", "since": "last_wall >= :since", "until": "began <= :until"}
"""SQL for the conditions of AllocationQuery, by field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationQuery:
    """A search for allocations that were in force at some time from `since` to `until` (Unix times, None for any)."""

    uuid: str | None = None
    since: float | None = None
    until: float | None = None
    before: tuple[float, int] | None = None
    limit: int = 10_000

    def matches(self, allocation: Allocation) -> bool:
        """Return True if this allocation meets all conditions except `limit`."""
        return (
            self.uuid in {None, allocation.uuid}
            and (self.since is None or allocation.last_wall >= self.since)
            and (self.until is None or allocation.began.wall <= self.until)
        )


def put(connection: sqlite3.Connection, allocations: Iterable[Allocation]) -> None:
    """Insert or update the row of each allocation."""
    connection.executemany(
        "INSERT INTO allocations (id, uuid, began, last_wall, ended, allocation) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET"
        " last_wall = excluded.last_wall, ended = excluded.ended, allocation = excluded.allocation",
        [
            (each.id, each.uuid, each.began.wall, each.last_wall, each.ended, json.dumps(asdict(each)))
            for each in allocations
        ],
    )


def find(connection: sqlite3.Connection, query: AllocationQuery) -> tuple[Allocation, ...]:
    """Return the allocations that match the query, the one that began last first."""
    where, parameters = matching(query, _CONDITIONS)
    rows = connection.execute(
        f"SELECT id, allocation FROM allocations WHERE {where} ORDER BY began DESC LIMIT :limit",  # noqa: S608 - our own names
        parameters,
    )
    return tuple(readable("allocations", rows, lambda row: validate(Allocation, json.loads(row[1]))))


def read_open(connection: sqlite3.Connection) -> tuple[Allocation, ...]:
    """Return the newest allocations that have not ended. Those of earlier boots have ended with their boot."""
    query = "SELECT id, allocation FROM allocations WHERE NOT ended ORDER BY began DESC LIMIT ?"
    rows = connection.execute(query, (MAX_HELD,))
    return tuple(readable("allocations", rows, lambda row: validate(Allocation, json.loads(row[1]))))


def prune(connection: sqlite3.Connection, oldest: float, limit: int) -> None:
    """Delete allocations that were last in force before `oldest` (Unix time), and the oldest beyond `limit` rows."""
    connection.execute(
        "DELETE FROM allocations WHERE last_wall < ? OR number <= (SELECT max(number) FROM allocations) - ?",
        (oldest, limit),
    )
