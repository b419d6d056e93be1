"""Tables `verdicts` (open verdicts) and `verdict_transitions`. Pending verdicts are a JSON text in table `meta`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from gpumon.health.node_health import PendingVerdict
from gpumon.health.verdict import (
    FAIL,
    JOB,
    REPAIRS,
    Key,
    Verdict,
    VerdictChange,
    VerdictTransition,
)
from gpumon.store.stored_rows import StoreTable, flat, insert, readable, validate

_NOT_STORED = ("check", "device", "active")
"""Fields of Verdict that are not in the JSON column `document`: they have columns, or the next evaluation sets them."""
_COLUMNS = ("wall", "at", "boot_id", "check_name", "device", "change", "cleared_by", "note", "muted", "document")
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM verdict_transitions"  # noqa: S608 - our own names
_REPAIRS = ", ".join(f"'{cleared_by}'" for cleared_by in sorted(REPAIRS))
_SIGNIFICANT = (
    f"(change = '{VerdictChange.CLEARED}' AND cleared_by IN ({_REPAIRS})"
    f" OR change = '{VerdictChange.RAISED}'"
    f" AND CASE WHEN json_valid(document) THEN json_extract(document, '$.level') END = {FAIL.value})"
)
"""SQL condition for transitions on which later evaluations depend: `is_significant` of health.node_health in SQL."""
_LAST_CLEARED = (
    f"SELECT max(number) FROM verdict_transitions WHERE change = '{VerdictChange.CLEARED}'"  # noqa: S608 - constants
    f" AND device NOT LIKE '{JOB}%'"
    " GROUP BY check_name, device"
)
"""SQL for the row numbers of the transitions that last cleared each verdict. The retention keeps these rows: without
them, an old event that is still stored would raise its verdict again.
"""


def record(connection: sqlite3.Connection, transitions: Iterable[VerdictTransition]) -> None:
    """Store transitions of verdicts, and for each transition insert, update or delete the row of the open verdict."""
    for transition in transitions:
        connection.execute(insert("verdict_transitions", _COLUMNS), _row(transition))
        if transition.change is VerdictChange.CLEARED:
            connection.execute("DELETE FROM verdicts WHERE check_name = ? AND device = ?", transition.verdict.key)
        else:
            _put(connection, transition.verdict)


def restore(
    connection: sqlite3.Connection, verdicts: Iterable[Verdict], transitions: Iterable[VerdictTransition]
) -> None:
    """Replace all open verdicts, and add the transitions that are missing in the store.

    A missing transition that is older than the newest stored one of its verdict was deleted by the retention, and is
    not stored again.
    """
    connection.execute("DELETE FROM verdicts")
    for verdict in verdicts:
        _put(connection, verdict)
    for transition in sorted(transitions, key=lambda transition: transition.time.wall):
        connection.execute(
            f"INSERT INTO verdict_transitions ({', '.join(_COLUMNS)}) SELECT {', '.join('?' * len(_COLUMNS))}"  # noqa: S608
            " WHERE NOT EXISTS (SELECT 1 FROM verdict_transitions WHERE check_name = ? AND device = ?"
            " AND (wall > ? OR (wall = ? AND at = ? AND change = ?)))",
            (
                *_row(transition),
                *transition.verdict.key,
                transition.time.wall,
                transition.time.wall,
                transition.time.at,
                transition.change,
            ),
        )


def update(connection: sqlite3.Connection, states: Iterable[tuple[Verdict, ...]]) -> None:
    """Update the JSON of stored open verdicts, such as the time at which the fault was last active.

    Each element of `states` has some of the verdicts; a later element replaces the same verdict of an earlier one.
    """
    connection.executemany(
        "UPDATE verdicts SET document = ? WHERE check_name = ? AND device = ?",
        [(_document(verdict), *verdict.key) for verdicts in states for verdict in verdicts],
    )


TABLE: StoreTable[tuple[Verdict, ...]] = StoreTable(key=lambda _: None, put=update)


def read_open(connection: sqlite3.Connection) -> tuple[Verdict, ...]:
    """Return the open verdicts. Unreadable rows are left out."""
    rows = connection.execute("SELECT check_name, device, document FROM verdicts").fetchall()
    return tuple(readable("verdicts", rows, lambda row: _verdict(*row)))


def read_transitions(
    connection: sqlite3.Connection, limit: int, *, significant: bool = False
) -> tuple[VerdictTransition, ...]:
    """Return the newest `limit` transitions, or of those on which later evaluations depend, the newest last."""
    rows = connection.execute(
        f"{_SELECT} {f'WHERE {_SIGNIFICANT}' if significant else ''} ORDER BY number DESC LIMIT ?", (limit,)
    ).fetchall()
    return tuple(readable("verdict_transitions", reversed(rows), _transition))


def read_last_cleared(connection: sqlite3.Connection) -> dict[Key, VerdictTransition]:
    """Return, by check and device, the transition that last cleared a verdict."""
    rows = connection.execute(f"{_SELECT} WHERE number IN ({_LAST_CLEARED})").fetchall()
    transitions = readable("verdict_transitions", rows, _transition)
    return {transition.verdict.key: transition for transition in transitions}


def put_pending(connection: sqlite3.Connection, states: Iterable[tuple[PendingVerdict, ...]]) -> None:
    """Replace the stored pending verdicts. Each element of `states` is a complete set; the last set remains."""
    for pending in states:
        document = json.dumps([asdict(finding) for finding in pending])
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('pending_verdicts', ?)", (document,))


PENDING: StoreTable[tuple[PendingVerdict, ...]] = StoreTable(key=lambda _: None, put=put_pending)


def read_pending(connection: sqlite3.Connection) -> tuple[PendingVerdict, ...]:
    """Return the stored pending verdicts; none if their JSON is missing or unreadable."""
    rows = connection.execute("SELECT value FROM meta WHERE key = 'pending_verdicts'")
    return next(readable("meta", rows, lambda row: validate(tuple[PendingVerdict, ...], json.loads(row[0]))), ())


def prune(connection: sqlite3.Connection, oldest: float, limit: int) -> None:
    """Delete transitions of verdicts older than `oldest` (Unix time), and the oldest transitions beyond `limit` rows.

    The last transition that cleared each verdict is kept.
    """
    connection.execute(
        "DELETE FROM verdict_transitions"  # noqa: S608 - a constant
        " WHERE (wall < ? OR number <= (SELECT max(number) FROM verdict_transitions) - ?)"
        f" AND number NOT IN ({_LAST_CLEARED})",
        (oldest, limit),
    )


def _put(connection: sqlite3.Connection, verdict: Verdict) -> None:
    connection.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?)", (*verdict.key, _document(verdict)))


def _row(transition: VerdictTransition) -> tuple[object, ...]:
    return (
        transition.time.wall,
        transition.time.at,
        transition.time.boot_id,
        *transition.verdict.key,
        transition.change,
        transition.cleared_by,
        transition.note,
        transition.muted,
        _document(transition.verdict),
    )


def _document(verdict: Verdict) -> str:
    return json.dumps({name: value for name, value in flat(verdict).items() if name not in _NOT_STORED})


def _verdict(check: str, device: str, document: str) -> Verdict:
    values = json.loads(document)
    verdict = validate(Verdict, {**values, "check": check, "device": device, "active": False})
    return verdict._replace(evidence=values["evidence"])  # keep integers in the evidence as integers


def _transition(row: Sequence[Any]) -> VerdictTransition:
    values = dict(zip(_COLUMNS, row, strict=True))
    verdict = _verdict(values.pop("check_name"), values.pop("device"), values.pop("document"))
    return validate(VerdictTransition, {**values, "verdict": verdict})
