"""The row of pending verdicts: findings that must last longer before they raise or clear a verdict."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from gpumon.health.pending_verdicts import PendingVerdict
from gpumon.health.verdict import Level
from gpumon.store.store_table import StoreTable

log = logging.getLogger("gpumon.store")


def put(connection: sqlite3.Connection, states: Iterable[tuple[PendingVerdict, ...]]) -> None:
    """Replace the stored document with each of these."""
    for pending in states:
        document = json.dumps([asdict(verdict) for verdict in pending])
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('pending_verdicts', ?)", (document,))


TABLE: StoreTable[tuple[PendingVerdict, ...]] = StoreTable(name="pending_verdicts", key=lambda _: None, put=put)


def read(connection: sqlite3.Connection) -> tuple[PendingVerdict, ...]:
    """Return the stored findings; none if the document is unreadable."""
    row = connection.execute("SELECT value FROM meta WHERE key = 'pending_verdicts'").fetchone()
    try:
        return tuple(map(_pending_verdict, json.loads(row[0] if row else "[]")))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        log.warning("ignored unreadable pending verdicts in the store", extra={"error": str(error)})
        return ()


def _pending_verdict(document: Mapping[str, Any]) -> PendingVerdict:
    lasted = {Level(int(level)): seconds for level, seconds in document["lasted"].items()}
    return PendingVerdict(**{**document, "level": Level(document["level"]), "lasted": lasted})
