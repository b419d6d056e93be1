"""What is known of the node's health, whoever told it: the running agent, or the store of the last one.

Named tuples: dataclasses take longer to import than the agent to answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpumon.health.terms import Level

Document = Mapping[str, Any]
"""A verdict as /api/v1/health has it."""
LEVELS = {level.word: level for level in Level}


class GpuRecord(NamedTuple):
    """A GPU, by all its names."""

    number: int | None
    """Its index in this boot, by which it is shown."""
    uuid: str
    bus_id: str
    nvml_index: int | None = None
    """Its index by the driver now, by which CUDA and nvidia-smi go; None: not listed, or nobody says."""
    migs: tuple[str, ...] = ()
    """uuids of its MIG instances."""
    level: Level = Level.OK
    unwatched: str = ""
    """Why nobody can tell how it is now, in words."""

    @property
    def moved(self) -> bool:
        """The driver counts it by another number than that by which it is shown."""
        return self.nvml_index is not None and self.nvml_index != self.number

    @property
    def name(self) -> str:
        return self.uuid if self.number is None else f"GPU {self.number}"


class Fault(NamedTuple):
    """A primary verdict, and what follows from it."""

    verdict: Document
    consequences: tuple[Document, ...] = ()


class Known(NamedTuple):
    """The node."""

    source: str
    """agent, store, or none: then `trouble` is all there is."""
    level: Level = Level.OK
    """Of the whole node."""
    faults: tuple[Fault, ...] = ()
    gpus: tuple[GpuRecord, ...] = ()
    awaited: int = 0
    """GPUs that should be here and are not counted, which is no verdict in the minutes of a boot."""
    maintenance: str | None = None
    """The maintenance in force, in words."""
    trouble: str = ""
    """Why nobody tells how it is now: the rest is of earlier."""


def maintenance(until: str, reason: str) -> str:
    """In words; `until` as the API writes moments."""
    return f"until {until[:10]} {until[11:19]} UTC: {reason}"


class Unknowable(Exception):  # noqa: N818 - it says what the answer is
    """Nobody can tell; the message says why, and what to do."""
