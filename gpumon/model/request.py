"""Requests that change the state of the agent: their entries in the audit log and their results."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHolder:
    """A process of the agent that has, or may have, a GPU open despite a release or hold. `pid` is 0 if unknown."""

    pid: int
    description: str
    """Text for the operator that identifies the process, for example by its kind and current driver call."""
    stuck: bool = False
    """True if SIGKILL has not ended the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestResult:
    """Result of a request that changes the state of the agent."""

    refused: str = ""
    """Reason why the request was refused and nothing changed; empty if it was accepted."""
    remedy: str = ""
    holders: tuple[DeviceHolder, ...] = ()
    """Processes that still have the GPUs open, because the request timed out or SIGKILL does not end them."""
    not_readable: str = ""
    """Reason why a process may have the GPUs open although `holders` is empty; empty if none can have them open."""
    stored: bool = True
    """False if the change is in effect but not stored. It is lost if the agent restarts before the store recovers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One entry of the audit log: a requested change. One over HTTP is recorded even if it failed (see `status`)."""

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
