"""Faults of a rank that tests order, as `KIND:RANK` and the kind's arguments."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Optional

KINDS = ("corrupt", "sleep", "link", "hang", "crash", "deaf")


class Fault:
    """The fault of one rank; most ranks have none.

    `corrupt:RANK` adds 1 to an element that it sends. `sleep:RANK:SECONDS` sleeps in every timed operation.
    `link:RANK:PEER:SECONDS` makes two ranks slow with each other. `hang:RANK:STAGE` and `crash:RANK:STAGE` do that at a
    stage. `deaf:RANK` ignores SIGTERM, and hangs while it measures.
    """

    def __init__(self, text: str, rank: int) -> None:
        self._rank = rank
        self.replace(text)

    def replace(self, text: str) -> None:
        """Replace the fault."""
        kind, *rest = text.split(":")
        if text and kind not in KINDS:
            raise ValueError("no such fault: " + text)
        ranks = {int(rank) for rank in rest[: 2 if kind == "link" else 1]}
        self._kind = kind if self._rank in ranks else ""
        self._peers = ranks - {self._rank}
        self._rest = rest[-1] if rest else ""
        if self._kind == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def apply_at(self, stage: str) -> None:
        """Hang or crash at the start of a stage, if that is the fault."""
        if (self._kind == "hang" and self._rest == stage) or (self._kind == "deaf" and stage == "measure"):
            time.sleep(3600)
        elif self._kind == "crash" and self._rest == stage:
            os.kill(os.getpid(), signal.SIGSEGV)

    def delay(self, peer: Optional[int] = None) -> None:  # noqa: UP045 - Python 3.9
        """Sleep in an operation with this peer alone, or with all ranks, if that is the fault."""
        if self._kind == "sleep" or (self._kind == "link" and (peer is None or peer in self._peers)):
            time.sleep(float(self._rest))

    def corrupt(self, elements: Any) -> None:
        """Corrupt what this rank is about to send, if that is the fault."""
        if self._kind == "corrupt":
            elements[len(elements) // 2] += 1
