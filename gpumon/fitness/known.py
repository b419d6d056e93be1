"""What is known of the node's health, whoever told it: the running agent, or the store of the last one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpumon.health.terms import Level

Document = Mapping[str, Any]
"""A verdict as /api/v1/health has it."""
LEVELS = {level.word: level for level in Level}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGpu:
    """A GPU, by all its names."""

    index: int | None
    uuid: str
    bus_id: str
    migs: tuple[str, ...] = ()
    """uuids of its MIG instances."""
    level: Level = Level.OK
    unwatched: str = ""
    """Why nobody can tell how it is now, in words."""

    @property
    def name(self) -> str:
        return self.uuid if self.index is None else f"GPU {self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A primary verdict, and what follows from it."""

    verdict: Document
    consequences: tuple[Document, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The node."""

    source: str
    """agent, store, or none: then `trouble` is all there is."""
    level: Level = Level.OK
    """Of the whole node."""
    faults: tuple[Fault, ...] = ()
    gpus: tuple[KnownGpu, ...] = ()
    maintenance: str | None = None
    """The maintenance in force, in words."""
    trouble: str = ""
    """Why nobody tells how it is now: the rest is of earlier."""


def maintenance(until: str, reason: str) -> str:
    """In words; `until` as the API writes moments."""
    return f"until {until[:10]} {until[11:19]} UTC: {reason}"


class Unknowable(Exception):  # noqa: N818 - it says what the answer is
    """Nobody can tell; the message says why, and what to do."""
