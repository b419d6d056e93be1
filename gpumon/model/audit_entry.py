"""One request that changed the state of the agent, or started work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """Who requested what, when and why. The agent records it after its answer."""

    wall: float
    """Seconds since the epoch."""
    request: str
    """Method and path with parameters, the signal, or the marker file."""
    reason: str = ""
    """Reason or note that the client gave."""
    client: str = ""
    """`local` for the unix socket, `signal`, `marker`, else the address."""
    uid: int | None = None
    """User of a local client, or owner of the marker file; None for a client with a token."""
    login_uid: int | None = None
    """User who logged in to the session of a local client, also after sudo; None for a service."""
    status: int | None = None
    """HTTP status of the answer."""
