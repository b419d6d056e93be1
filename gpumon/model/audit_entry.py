"""Entry of the audit log: one request that changed the state of the agent, or started work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One entry of the audit log: the requested change, and the client, time and reason of the request.

    A request over HTTP is recorded when its response begins.
    """

    wall: float
    """Time of the entry in seconds since the epoch."""
    request: str
    """The request: HTTP method and path with parameters; `SIGHUP`; or the path of the marker file with the GPU that it
    names.
    """
    reason: str = ""
    """Reason or note that the client gave; empty if none."""
    client: str = ""
    """Origin of the request: `local` for the unix socket, `signal`, `marker`, else the client's IP address."""
    uid: int | None = None
    """User id of a local client, or of the owner of the marker file; None for a remote client and for a signal."""
    login_uid: int | None = None
    """Id of the user who logged in to the local client's session, unchanged by sudo; None for any other client."""
    status: int | None = None
    """HTTP status of the answer; None for a signal or the marker file."""
