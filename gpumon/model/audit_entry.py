"""Entry of the audit log: one authorized request to change the state of the agent or to start work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One entry of the audit log: the requested change, and the client, time and reason of the request.

    A request over HTTP is recorded when its response begins, also if it failed (see `status`).
    """

    wall: float
    """Time of the entry in seconds since the epoch."""
    request: str
    """The request: HTTP method and path with parameters; `SIGHUP`; or the path of the marker file, followed by the GPU
    that it names, or by `deleted`.
    """
    reason: str = ""
    """Reason or note that the client gave; empty if none."""
    client: str = ""
    """Origin of the request: `local` for the unix socket, `signal`, `marker`, else the client's IP address."""
    uid: int | None = None
    """User id of a local client, or of the owner of the marker file; None if remote, a signal, or a deleted file."""
    login_uid: int | None = None
    """Id of the user who logged in to the local client's session, unchanged by sudo; None if there is none."""
    status: int | None = None
    """HTTP status of the answer; None for a signal or the marker file."""
