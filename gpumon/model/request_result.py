"""The result of a request to change the state of the agent, and the processes that delay one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHolder:
    """A process of the agent that has, or may have, a GPU open."""

    pid: int
    description: str
    """For the operator: what the process is, and which call on which GPU it is in."""
    stuck: bool = False
    """SIGKILL does not end it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestResult:
    """The result of a request."""

    refused: str = ""
    """Why the request was refused and nothing changed. Empty if it was accepted."""
    remedy: str = ""
    holders: tuple[DeviceHolder, ...] = ()
    """Processes that still had the GPUs open when the request timed out."""
    not_readable: str = ""
    """Why it is unknown whether a process still has the GPUs open, after a timeout."""
    stored: bool = True
    """False: the change is active, but it would be lost if the agent restarted before the store recovers."""
