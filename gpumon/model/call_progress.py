"""The call page: a few bytes of shared memory in which a child says which driver call it is in.

A child stuck in the kernel cannot speak, but the daemon can still read here which call, on which GPU and since when.
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
"""Stands behind the name of a call that has failed for this GPU before."""


@dataclass(frozen=True, slots=True)
class CallInProgress:
    """The call a child is in, or was in last."""

    sequence: int
    calls: int
    since: float
    bus_id: str
    """Empty for calls that concern no single GPU."""
    call: str

    @property
    def running(self) -> bool:
        return self.sequence % 2 == 1


def create() -> int:
    """A new page; the descriptor is handed to the child and read by `Reader`."""
    descriptor = os.memfd_create("gpumon-call-page")
    os.ftruncate(descriptor, SIZE)
    return descriptor


@contextmanager
def created() -> Iterator[int]:
    """A new page while a child is started: the child and the `Reader` have it mapped by then."""
    descriptor = create()
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class Writer:
    """The child's side: `enter` before each driver call, `leave` after it."""

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
    """The daemon's side."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, SIZE, prot=mmap.PROT_READ)
        self._last: CallInProgress | None = None

    def read(self) -> CallInProgress:
        """What the child last wrote. A torn read does no harm: a call is judged only when it lasts for seconds."""
        if self._last is not None:
            return self._last
        sequence, calls, since, bus_id, call = _LAYOUT.unpack_from(self._page, 0)
        return CallInProgress(sequence, calls, since, bus_id.rstrip(b"\0").decode(), call.rstrip(b"\0").decode())

    def close(self) -> None:
        """Of a child that has ended; what it wrote last can still be read."""
        self._last = self.read()
        self._page.close()
