"""What waits to become a verdict, or to end one. Inside the caller's transaction."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from gpumon.health.pending_verdicts import PendingVerdict
from gpumon.health.terms import Level

log = logging.getLogger(__name__)


def keep(connection: sqlite3.Connection, known: Iterable[PendingVerdict]) -> None:
    """Exactly these."""
    document = json.dumps([asdict(one) for one in known])
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('waiting', ?)", (document,))


def every(connection: sqlite3.Connection) -> tuple[PendingVerdict, ...]:
    """Nothing where it cannot be read: it begins anew."""
    row = connection.execute("SELECT value FROM meta WHERE key = 'waiting'").fetchone()
    try:
        return tuple(map(_waited, json.loads(row[0] if row else "[]")))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        log.warning("what waits to become a verdict cannot be read", extra={"error": str(error)})
        return ()


def _waited(values: Mapping[str, Any]) -> PendingVerdict:
    lasted = {Level(int(level)): seconds for level, seconds in values["lasted"].items()}
    return PendingVerdict(**{**values, "level": Level(values["level"]), "lasted": lasted})
