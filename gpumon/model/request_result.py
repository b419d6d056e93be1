"""Result of a request that changes the state of the agent, and the processes that still use GPUs despite it."""

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
