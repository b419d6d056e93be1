"""Rows of verdicts: those that there are, and what became of each. Inside the caller's transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpumon.health.terms import FAIL, Action, Level, Way
from gpumon.health.verdict import REPAIRS, Key, Verdict, VerdictChange, VerdictTransition

_NOT_STORED = ("check", "device", "active")
"""Columns of their own, and what is found out anew."""
_COLUMNS = "wall, at, boot_id, check_name, device, change, way, note, muted, document"
_WAYS = ", ".join(f"'{way}'" for way in sorted(REPAIRS))
_WEIGHTY = (
    f"(change = '{VerdictChange.CLEARED}' AND way IN ({_WAYS})"
    f" OR change = '{VerdictChange.RAISED}' AND json_extract(document, '$.level') = {FAIL.value})"
)
"""As standing.is_weighty has it."""
LAST_CLEARED = (
    f"SELECT max(number) FROM rulings WHERE change = '{VerdictChange.CLEARED}'"  # noqa: S608 - a constant
    " GROUP BY check_name, device"
)
"""Numbers of the rows that say how each verdict was last cleared: they outlive the retention."""


def write(connection: sqlite3.Connection, transition: VerdictTransition) -> None:
    """The change, and what follows from it for the verdict."""
    put_transition(connection, transition)
    if transition.change is VerdictChange.CLEARED:
        connection.execute("DELETE FROM verdicts WHERE check_name = ? AND device = ?", transition.verdict.key)
    else:
        put(connection, transition.verdict)


def put_transition(connection: sqlite3.Connection, transition: VerdictTransition) -> None:
    """The change alone; nothing when it is there already."""
    verdict = transition.verdict
    row = (
        transition.wall,
        transition.at,
        transition.boot_id,
        *verdict.key,
        transition.change,
        transition.way,
        transition.note,
        transition.muted,
    )
    connection.execute(
        f"INSERT INTO rulings ({_COLUMNS}) SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ? WHERE NOT EXISTS"  # noqa: S608 - columns
        " (SELECT 1 FROM rulings WHERE check_name = ? AND device = ? AND change = ? AND wall = ? AND at = ?)",
        (*row, _document(verdict), *verdict.key, transition.change, transition.wall, transition.at),
    )


def put(connection: sqlite3.Connection, verdict: Verdict) -> None:
    """The verdict as it is, without a change to tell of."""
    connection.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?)", (*verdict.key, _document(verdict)))


def touch(connection: sqlite3.Connection, verdict: Verdict) -> None:
    """What is new about it and changes nothing; one that is not there stays away."""
    connection.execute(
        "UPDATE verdicts SET document = ? WHERE check_name = ? AND device = ?", (_document(verdict), *verdict.key)
    )


def open_verdicts(connection: sqlite3.Connection) -> tuple[Verdict, ...]:
    rows = connection.execute("SELECT check_name, device, document FROM verdicts").fetchall()
    return tuple(verdict for row in rows if (verdict := _verdict(*row)) is not None)


def recent_transitions(
    connection: sqlite3.Connection, since: float, limit: int, *, weighty: bool = False
) -> tuple[VerdictTransition, ...]:
    """The newest last. `since`: seconds since the epoch. `weighty`: only those that later judgements rest on."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM rulings WHERE wall >= ? {f'AND {_WEIGHTY}' if weighty else ''}"  # noqa: S608 - constants
        " ORDER BY number DESC LIMIT ?",
        (since, limit),
    ).fetchall()
    return tuple(_transitions(reversed(rows)))


def cleared(connection: sqlite3.Connection) -> dict[Key, VerdictTransition]:
    """How each verdict was last cleared."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM rulings WHERE number IN ({LAST_CLEARED})"  # noqa: S608 - constants
    ).fetchall()
    return {transition.verdict.key: transition for transition in _transitions(rows)}


def _document(verdict: Verdict) -> str:
    return json.dumps({name: value for name, value in verdict._asdict().items() if name not in _NOT_STORED})


def _verdict(check: str, device: str, document: str) -> Verdict | None:
    """None for one that cannot be read: it is lost, and told."""
    try:
        values: Mapping[str, Any] = json.loads(document)
        under = None if values["under"] is None else tuple(values["under"])
        typed = {"level": Level(values["level"]), "action": Action(values["action"]), "under": under}
        return Verdict(check=check, device=device, active=False, **{**values, **typed})
    except (KeyError, TypeError, ValueError) as error:
        import logging  # noqa: PLC0415 - it is seldom needed, and `gpumon check` would wait for it

        log = logging.getLogger(__name__)
        log.warning("a stored verdict cannot be read", extra={"check": check, "device": device, "error": str(error)})
        return None


def _transitions(rows: Iterable[tuple[Any, ...]]) -> Iterator[VerdictTransition]:
    for wall, at, boot_id, check, device, change, way, note, muted, document in rows:
        verdict = _verdict(check, device, document)
        if verdict is not None:
            yield VerdictTransition(
                verdict=verdict,
                change=VerdictChange(change),
                wall=wall,
                at=at,
                boot_id=boot_id,
                way=None if way is None else Way(way),
                note=note,
                muted=bool(muted),
            )
