"""Sightings become bursts: one record of an error for as long as it comes without a pause of three minutes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace

from gpumon.model.error_event import MOST_TEXTS, NVML, ErrorEvent, ErrorObservation, common

PAUSE = 180.0
"""Seconds without the error after which the next one is another."""
MAX_OPEN = 1000
"""Bursts that may go on at once; of more, the one that was silent longest is ended early."""

Key = tuple[str, str, int, bool]


class EventGrouper:
    """Those that may go on."""

    def __init__(self, boot_id: str, new_id: Callable[[], str] = lambda: uuid.uuid4().hex[:12]) -> None:
        self._boot_id = boot_id
        self._new_id = new_id
        self._open: dict[Key, ErrorEvent] = {}
        """The one that was silent longest first."""

    def recall(self, stored: Iterable[ErrorEvent]) -> None:
        """Go on with what an earlier life of the agent has stored, oldest first."""
        for event in reversed(tuple(stored)):
            if event.boot_id == self._boot_id:
                self._open.setdefault(_key(event), event)

    def add(self, seen: ErrorObservation) -> ErrorEvent:
        """The burst that this belongs to, with it."""
        key = _key(seen)
        event = self._open.get(key)
        if event is not None and seen.at < event.first_at - PAUSE:  # told late: over before that one began
            return _with(self._begin(seen), seen)
        if event is None or seen.at > event.last_at + PAUSE:
            event = self._begin(seen)
        self._open.pop(key, None)
        self._open[key] = event = _with(event, seen)
        if len(self._open) > MAX_OPEN:
            del self._open[next(iter(self._open))]
        return event

    def end(self, now: float) -> frozenset[str]:
        """Forget those that have been silent for too long to go on. Ids of those that may."""
        self._open = {key: event for key, event in self._open.items() if event.last_at + PAUSE >= now}
        return frozenset(event.id for event in self._open.values())

    def _begin(self, seen: ErrorObservation) -> ErrorEvent:
        return ErrorEvent(
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


def _key(one: ErrorObservation | ErrorEvent) -> Key:
    return one.kind, one.bus_id, one.code, one.historical


def _with(event: ErrorEvent, seen: ErrorObservation) -> ErrorEvent:
    """An error that both sources tell of is counted by each; see Burst."""
    logged = seen.times if seen.source != NVML and seen.numbered else 0
    return replace(
        event,
        uuid=event.uuid or seen.uuid,
        first_at=min(event.first_at, seen.since),
        last_at=max(event.last_at, seen.at),
        first_wall=min(event.first_wall, seen.wall - (seen.at - seen.since)),
        last_wall=max(event.last_wall, seen.wall),
        nvml=event.nvml + (seen.times if seen.source == NVML else 0),
        kmsg=event.kmsg + logged,
        unnumbered=event.unnumbered or not seen.numbered,
        texts=_texts(event.texts, (*seen.texts, seen.text)),
        text=seen.text or event.text,
        gpu_instance_id=_narrowed(event.gpu_instance_id, seen.gpu_instance_id),
        compute_instance_id=_narrowed(event.compute_instance_id, seen.compute_instance_id),
        fatal=seen.fatal if event.fatal is None else event.fatal or bool(seen.fatal),
    )


def _narrowed(known: int | None, seen: int | None) -> int | None:
    """Once several instances were named, none is again."""
    return None if known is None else common((known, seen))


def _texts(texts: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*texts, *filter(None, more))))[:MOST_TEXTS]
