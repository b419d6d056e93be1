"""Records requests to change the agent's state or to start work, and their clients, in the log and in the store."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial

from gpumon.model.request import AuditEntry
from gpumon.services.persistence import Persistence
from gpumon.store import records

_log = logging.getLogger("gpumon.audit")
_log.setLevel(logging.INFO)  # independent of log.level, because the journal also has the record if the store is lost


class AuditLog:
    """Records requests to change the agent's state or to start work, even if they fail, and returns the records.

    Any thread may use it.
    """

    def __init__(self, persistence: Persistence) -> None:
        self._persistence = persistence

    def record(self, entry: AuditEntry) -> None:
        """Log the entry and write it to the store. If the store fails, only the log contains the entry."""
        words = {name: value for name, value in asdict(entry).items() if name != "wall" and value not in ("", None)}
        _log.info("change requested", extra=words)
        self._persistence.write(partial(records.put_audit_entry, entry=entry))

    def find(self, limit: int) -> Future[tuple[AuditEntry, ...]]:
        """Return a future with the newest `limit` entries, newest first; it raises StoreError if the store fails."""
        return self._persistence.read(partial(records.read_audit_entries, limit=limit))
