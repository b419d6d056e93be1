"""Sightings become bursts: one record of an error for as long as it comes without a pause of three minutes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace

from gpumon.model.error_event import MOST_TEXTS, NVML, Burst, Sighting, common

PAUSE = 180.0
"""Seconds without the error after which the next one is another."""
MOST_OPEN = 1000
"""Bursts that may go on at once; of more, the one that was silent longest is ended early."""

Key = tuple[str, str, int, bool]


class Bursts:
    """Those that may go on."""

    def __init__(self, boot_id: str, new_id: Callable[[], str] = lambda: uuid.uuid4().hex[:12]) -> None:
        self._boot_id = boot_id
        self._new_id = new_id
        self._open: dict[Key, Burst] = {}
        """The one that was silent longest first."""

    def recall(self, stored: Iterable[Burst]) -> None:
        """Go on with what an earlier life of the agent has stored, oldest first."""
        for burst in reversed(tuple(stored)):
            if burst.boot_id == self._boot_id:
                self._open.setdefault(_key(burst), burst)

    def add(self, seen: Sighting) -> Burst:
        """The burst that this belongs to, with it."""
        key = _key(seen)
        burst = self._open.get(key)
        if burst is not None and seen.at < burst.first_at - PAUSE:  # told late: over before that one began
            return _with(self._begin(seen), seen)
        if burst is None or seen.at > burst.last_at + PAUSE:
            burst = self._begin(seen)
        self._open.pop(key, None)
        self._open[key] = burst = _with(burst, seen)
        if len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]
        return burst

    def end(self, now: float) -> frozenset[str]:
        """Forget those that have been silent for too long to go on. Ids of those that may."""
        self._open = {key: burst for key, burst in self._open.items() if burst.last_at + PAUSE >= now}
        return frozenset(burst.id for burst in self._open.values())

    def _begin(self, seen: Sighting) -> Burst:
        return Burst(
            id=self._new_id(),
            kind=seen.kind,
            code=seen.code,
            bus_id=seen.bus_id,
            uuid=seen.uuid,
            boot_id=self._boot_id,
            first_at=seen.since,
            last_at=seen.at,
            first_wall=seen.wall - (seen.at - seen.since),
            last_wall=seen.wall,
            historical=seen.historical,
            gpu_instance_id=seen.gpu_instance_id,
            compute_instance_id=seen.compute_instance_id,
        )


def _key(one: Sighting | Burst) -> Key:
    return one.kind, one.bus_id, one.code, one.historical


def _with(burst: Burst, seen: Sighting) -> Burst:
    """An error that both sources tell of is counted by each; see Burst."""
    logged = seen.times if seen.source != NVML and seen.numbered else 0
    return replace(
        burst,
        uuid=burst.uuid or seen.uuid,
        first_at=min(burst.first_at, seen.since),
        last_at=max(burst.last_at, seen.at),
        first_wall=min(burst.first_wall, seen.wall - (seen.at - seen.since)),
        last_wall=max(burst.last_wall, seen.wall),
        nvml=burst.nvml + (seen.times if seen.source == NVML else 0),
        kmsg=burst.kmsg + logged,
        unnumbered=burst.unnumbered or not seen.numbered,
        texts=_texts(burst.texts, (*seen.texts, seen.text)),
        text=seen.text or burst.text,
        gpu_instance_id=_narrowed(burst.gpu_instance_id, seen.gpu_instance_id),
        compute_instance_id=_narrowed(burst.compute_instance_id, seen.compute_instance_id),
        fatal=seen.fatal if burst.fatal is None else burst.fatal or bool(seen.fatal),
    )


def _narrowed(known: int | None, seen: int | None) -> int | None:
    """Once several instances were named, none is again."""
    return None if known is None else common((known, seen))


def _texts(texts: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*texts, *filter(None, more))))[:MOST_TEXTS]
