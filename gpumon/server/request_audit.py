"""Builds the audit entry of an HTTP request: what was requested, and by which client."""

from __future__ import annotations

import time
from urllib.parse import parse_qs

from starlette.types import Scope

from gpumon.model.audit_entry import AuditEntry
from gpumon.server.connections import Peer

MAX_LENGTH = 500
"""Maximum number of characters of a request, and of its reason, that are recorded."""


def entry_of(scope: Scope, status: int) -> AuditEntry:
    """Return the audit entry of an authorized request that was answered with this HTTP status."""
    peer: Peer | None = scope["state"]["connection"].peer
    query = scope["query_string"].decode(errors="replace")
    given = parse_qs(query)
    return AuditEntry(
        wall=time.time(),
        request=f"{scope['method']} {scope['path']}{'?' if query else ''}{query}"[:MAX_LENGTH],
        reason=next(iter(given.get("reason", []) + given.get("note", [])), "")[:MAX_LENGTH],
        client=(scope["client"] or ("unknown",))[0] if peer is None else "local",
        uid=None if peer is None else peer.uid,
        login_uid=None if peer is None else peer.login_uid,
        status=status,
    )
