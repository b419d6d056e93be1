"""State that a simulated or replayed library keeps for its process: initialisation, event sets, GPM samples."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any, Generic, TypeVar

from gpumon_sim.cmemory import put
from gpumon_sim.codes import Code, Refusal
from gpumon_sim.layouts import EVENT_DATA, POINTER

_EVENT_SETS, _SAMPLES = 0x7E5D_0000_0000, 0x7E5E_0000_0000
_RECHECK = 0.05

Item = TypeVar("Item")
EventSet = TypeVar("EventSet")
Sample = TypeVar("Sample")


class Objects(dict[int, Item]):
    """The objects of one kind that a client allocated, by pointer. `base` is added to all pointers."""

    def __init__(self, base: int) -> None:
        super().__init__()
        self._pointers = count(base + 0x100, 0x100)

    def allocate(self, out: int | None, item: Item) -> None:
        """Store an object and write its pointer to `out`. Raise Refusal (INVALID_ARGUMENT) for NULL."""
        pointer = next(self._pointers)
        put(out, POINTER, pointer)
        self[pointer] = item

    def at(self, pointer: int | None) -> Item:
        """Return the object at a pointer. Raise Refusal (INVALID_ARGUMENT) if the pointer is not allocated."""
        if pointer is None or pointer not in self:
            raise Refusal(Code.INVALID_ARGUMENT)
        return self[pointer]

    def free(self, pointer: int | None) -> None:
        self.at(pointer)
        del self[pointer or 0]


class NvmlClient(Generic[EventSet, Sample]):
    """The initialisations and objects of one process. `epoch` is the start of the simulation or replay on `clock`."""

    def __init__(self, epoch: float, clock: Callable[[], float]) -> None:
        self._epoch = epoch
        self._clock = clock
        self._users = 0
        self.event_sets: Objects[EventSet] = Objects(_EVENT_SETS)
        self.samples: Objects[Sample | None] = Objects(_SAMPLES)
        """GPM samples; None for an allocated sample that has not been taken."""

    def time(self) -> float:
        """Return the seconds since the simulation or replay began."""
        return self._clock() - self._epoch

    def need_initialised(self) -> None:
        if not self._users:
            raise Refusal(Code.UNINITIALIZED)

    def shut_down(self) -> None:
        """Undo one initialisation. If none is left, free all event sets and GPM samples."""
        self.need_initialised()
        self._users -= 1
        if not self._users:
            self.event_sets.clear()
            self.samples.clear()

    def event_set(self, pointer: int | None) -> EventSet:
        """Return the event set at a pointer. Raise Refusal if the pointer is invalid or NVML is not initialised."""
        self.need_initialised()
        return self.event_sets.at(pointer)

    def wait(
        self,
        pointer: int | None,
        out: int | None,
        milliseconds: int,
        next_event: Callable[[EventSet], tuple[Any, ...] | None],
    ) -> None:
        """Write the next event of a set to `out`. Raise Refusal (TIMEOUT) if no event occurs within `milliseconds`.

        `next_event` returns the values of EVENT_DATA, or None if there is no event.
        """
        deadline = time.monotonic() + milliseconds / 1000
        while (event := next_event(self.event_set(pointer))) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Refusal(Code.TIMEOUT)
            time.sleep(min(_RECHECK, left))
        put(out, EVENT_DATA, *event)
