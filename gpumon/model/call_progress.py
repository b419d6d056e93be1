"""Call page: a small shared memory file in which a child process records its current call for the daemon.

The daemon reads which call it is, on which GPU and since when, even while the child is blocked in the kernel.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gpumon.clock import boot_clock

_LAYOUT = struct.Struct("<QQd32s64s")  # sequence (odd while in a call), calls made, since, bus id, call
SIZE = 4096
AGAIN = " (again)"
"""Suffix of a call that looks up a GPU with a fault again, with the deadline of ordinary calls."""


@dataclass(frozen=True, slots=True)
class CallInProgress:
    """The driver call or file access that a child has in progress; if it has none, its last one.

    `calls` is the number of calls that the child has begun, `since` the boot clock at which this call began, and `call`
    its name. `sequence` increases by 1 when a call begins and when it returns, so that it is odd during a call.
    """

    sequence: int
    calls: int
    since: float
    bus_id: str
    """NVML's bus id of the GPU; empty for calls that are not about one GPU."""
    call: str

    @property
    def running(self) -> bool:
        return self.sequence % 2 == 1


def create() -> int:
    """Create a shared memory file and return its descriptor, for `Writer` in the child and `Reader` in the daemon."""
    descriptor = os.memfd_create("gpumon-call-page")
    os.ftruncate(descriptor, SIZE)
    return descriptor


@contextmanager
def page_descriptor() -> Iterator[int]:
    """Yield the descriptor of a new call page, which child and `Reader` must take over before the exit closes it."""
    descriptor = create()
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class Writer:
    """Writes the call page in the child. Call `enter` before each driver call or file access, and `leave` after it."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, SIZE)
        self._sequence = 0
        self.calls = 0

    def enter(self, call: str, bus_id: str) -> None:
        self._sequence += 1
        self.calls += 1
        _LAYOUT.pack_into(self._page, 0, self._sequence, self.calls, boot_clock(), bus_id.encode(), call.encode())

    def leave(self) -> None:
        self._sequence += 1
        struct.pack_into("<Q", self._page, 0, self._sequence)


class Reader:
    """Reads, in the daemon, the call page of one child."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, SIZE, prot=mmap.PROT_READ)
        self._last: CallInProgress | None = None

    def read(self) -> CallInProgress:
        """Return the call that the child began last. If the call has returned, its `running` is False.

        Before the first call, `calls` is 0. The data may be inconsistent if the child writes at the same moment. That
        does no harm, because only calls that last for seconds matter.
        """
        if self._last is not None:
            return self._last
        sequence, calls, since, *names = _LAYOUT.unpack_from(self._page, 0)
        bus_id, call = (name.rstrip(b"\0").decode(errors="replace") for name in names)
        return CallInProgress(sequence, calls, since, bus_id, call)

    def close(self) -> None:
        """Unmap the page of a child that has ended. `read` still returns the last call."""
        self._last = self.read()
        self._page.close()
