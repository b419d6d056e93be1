"""Rows of verdicts: those that there are, and what became of each. Inside the caller's transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpumon.health.terms import FAIL, Action, Level, Way
from gpumon.health.verdict import REPAIRS, Change, Key, Ruling, Verdict

_NOT_STORED = ("check", "device", "active")
"""Columns of their own, and what is found out anew."""
_COLUMNS = "wall, at, boot_id, check_name, device, change, way, note, muted, document"
_WAYS = ", ".join(f"'{way}'" for way in sorted(REPAIRS))
_WEIGHTY = (
    f"(change = '{Change.CLEARED}' AND way IN ({_WAYS})"
    f" OR change = '{Change.RAISED}' AND json_extract(document, '$.level') = {FAIL.value})"
)
"""As standing.is_weighty has it."""
LAST_CLEARED = (
    f"SELECT max(number) FROM rulings WHERE change = '{Change.CLEARED}'"  # noqa: S608 - a constant
    " GROUP BY check_name, device"
)
"""Numbers of the rows that say how each verdict was last cleared: they outlive the retention."""


def write(connection: sqlite3.Connection, ruling: Ruling) -> None:
    """The change, and what follows from it for the verdict."""
    put_ruling(connection, ruling)
    if ruling.change is Change.CLEARED:
        connection.execute("DELETE FROM verdicts WHERE check_name = ? AND device = ?", ruling.verdict.key)
    else:
        put(connection, ruling.verdict)


def put_ruling(connection: sqlite3.Connection, ruling: Ruling) -> None:
    """The change alone; nothing when it is there already."""
    verdict = ruling.verdict
    row = (ruling.wall, ruling.at, ruling.boot_id, *verdict.key, ruling.change, ruling.way, ruling.note, ruling.muted)
    connection.execute(
        f"INSERT INTO rulings ({_COLUMNS}) SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ? WHERE NOT EXISTS"  # noqa: S608 - columns
        " (SELECT 1 FROM rulings WHERE check_name = ? AND device = ? AND change = ? AND wall = ? AND at = ?)",
        (*row, _document(verdict), *verdict.key, ruling.change, ruling.wall, ruling.at),
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


def recent_rulings(
    connection: sqlite3.Connection, since: float, limit: int, *, weighty: bool = False
) -> tuple[Ruling, ...]:
    """The newest last. `since`: seconds since the epoch. `weighty`: only those that later judgements rest on."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM rulings WHERE wall >= ? {f'AND {_WEIGHTY}' if weighty else ''}"  # noqa: S608 - constants
        " ORDER BY number DESC LIMIT ?",
        (since, limit),
    ).fetchall()
    return tuple(_rulings(reversed(rows)))


def cleared(connection: sqlite3.Connection) -> dict[Key, Ruling]:
    """How each verdict was last cleared."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM rulings WHERE number IN ({LAST_CLEARED})"  # noqa: S608 - constants
    ).fetchall()
    return {ruling.verdict.key: ruling for ruling in _rulings(rows)}


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


def _rulings(rows: Iterable[tuple[Any, ...]]) -> Iterator[Ruling]:
    for wall, at, boot_id, check, device, change, way, note, muted, document in rows:
        verdict = _verdict(check, device, document)
        if verdict is not None:
            yield Ruling(
                verdict=verdict,
                change=Change(change),
                wall=wall,
                at=at,
                boot_id=boot_id,
                way=None if way is None else Way(way),
                note=note,
                muted=bool(muted),
            )
