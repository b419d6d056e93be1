"""Faults that tests inject into a rank, written as `KIND:RANK` and, for some kinds, further arguments."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Optional

KINDS = ("corrupt", "sleep", "link", "hang", "crash")


class Fault:
    """A fault that is injected into one rank (for the kind `link`, into two ranks). In other ranks it does nothing.

    `corrupt:RANK` adds 1 to an element of the send buffer before each checked operation and each pair exchange;
    `corrupt:RANK:N` only before the N-th of these, from 0. `sleep:RANK:SECONDS` sleeps in every timed operation
    and warm-up, and in pair exchanges. `link:RANK:PEER:SECONDS` delays the two ranks in collectives and in exchanges
    with each other. `hang:RANK:STAGE` and `crash:RANK:STAGE` hang or crash at the start of a stage.
    """

    def __init__(self, text: str, rank: int) -> None:
        self._rank = rank
        self.replace(text)

    def replace(self, text: str) -> None:
        """Replace the fault with the one in `text`; an empty text removes it. Raise ValueError for an unknown kind."""
        kind, *rest = text.split(":")
        if text and kind not in KINDS:
            raise ValueError("no such fault: " + text)
        ranks = {int(rank) for rank in rest[: 2 if kind == "link" else 1]}
        self._kind = kind if self._rank in ranks else ""
        self._peers = ranks - {self._rank}
        self._rest = rest[-1] if rest else ""
        self._corrupt_at = int(rest[1]) if kind == "corrupt" and len(rest) > 1 else None
        self._sent = 0

    def apply_at(self, stage: str) -> None:
        """Hang or crash if the fault is one that does this at the start of this stage."""
        if self._kind == "hang" and self._rest == stage:
            time.sleep(3600)
        elif self._kind == "crash" and self._rest == stage:
            os.kill(os.getpid(), signal.SIGSEGV)

    def delay(self, peer: Optional[int] = None) -> None:  # noqa: UP045 - Python 3.9
        """Sleep if the fault delays exchanges with this peer or, for None, operations of all ranks."""
        if self._kind == "sleep" or (self._kind == "link" and (peer is None or peer in self._peers)):
            time.sleep(float(self._rest))

    def corrupt(self, elements: Any) -> None:
        """Change one element of the buffer that this rank is about to send, if the fault is `corrupt`."""
        if self._kind == "corrupt" and self._corrupt_at in {None, self._sent}:
            elements[len(elements) // 2] += 1
        self._sent += 1
