"""Groups error observations into events. An error that repeats within three minutes is the same event."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace

from gpumon.model.error_event import MAX_TEXTS, NVML, ErrorEvent, ErrorObservation, common
from gpumon.model.instant import Instant

PAUSE = 180.0
"""Seconds without the error after which its next occurrence starts another event."""
MAX_OPEN = 1000
"""Maximum number of open events. Above it, the event that has not occurred for the longest time ends early."""

Key = tuple[str, str, int, bool]


class EventGrouper:
    """Groups error observations into events. It holds the open events of this boot."""

    def __init__(self, boot_id: str, new_id: Callable[[], str] = lambda: uuid.uuid4().hex[:12]) -> None:
        self._boot_id = boot_id
        self._new_id = new_id
        self._open: dict[Key, ErrorEvent] = {}
        """Open events by kind, address, code and `historical`. The event that has not occurred for the longest time
        is first.
        """

    def restore(self, stored: Iterable[ErrorEvent]) -> None:
        """Reopen the events of this boot that an earlier run of the agent stored. `stored` is sorted oldest first."""
        for event in stored:
            if event.last.boot_id == self._boot_id:
                self._open.pop(_key(event), None)
                self._open[_key(event)] = event

    def add(self, observation: ErrorObservation) -> ErrorEvent:
        """Add an observation to its open event, or begin an event with it. Return that event.

        An observation from more than PAUSE before its open event gets an event of its own, which is not kept open.
        """
        key = _key(observation)
        event = self._open.get(key)
        if event is not None and observation.at < event.first.at - PAUSE:  # reported late: ended before `event` began
            return _extend(self._begin(observation), observation)
        if event is None or observation.at > event.last.at + PAUSE:
            event = self._begin(observation)
        self._open.pop(key, None)
        self._open[key] = event = _extend(event, observation)
        if len(self._open) > MAX_OPEN:
            del self._open[next(iter(self._open))]
        return event

    def end(self, now: float) -> frozenset[str]:
        """End events that last occurred more than PAUSE before the boot clock `now`. Return the ids of open events."""
        self._open = {key: event for key, event in self._open.items() if event.last.at + PAUSE >= now}
        return frozenset(event.id for event in self._open.values())

    def _begin(self, observation: ErrorObservation) -> ErrorEvent:
        return ErrorEvent(
            id=self._new_id(),
            kind=observation.kind,
            code=observation.code,
            bus_id=observation.bus_id,
            uuid=observation.uuid,
            first=_first(observation, self._boot_id),
            last=Instant(self._boot_id, observation.at, observation.wall),
            historical=observation.historical,
            gpu_instance_id=observation.gpu_instance_id,
            compute_instance_id=observation.compute_instance_id,
        )


def _key(event: ErrorObservation | ErrorEvent) -> Key:
    return event.kind, event.bus_id, event.code, event.historical


def _extend(event: ErrorEvent, observation: ErrorObservation) -> ErrorEvent:
    """Return the event with the observation added.

    The reports of NVML and of the kernel log are counted separately, because both report the same errors.
    """
    logged = observation.times if observation.source != NVML and observation.numbered else 0
    first = _first(observation, event.first.boot_id)
    texts = (*event.texts, *filter(None, (*observation.texts, observation.text)))
    return replace(
        event,
        uuid=event.uuid or observation.uuid,
        first=Instant(event.first.boot_id, min(event.first.at, first.at), min(event.first.wall, first.wall)),
        last=Instant(event.last.boot_id, max(event.last.at, observation.at), max(event.last.wall, observation.wall)),
        nvml=event.nvml + (observation.times if observation.source == NVML else 0),
        kmsg=event.kmsg + logged,
        unnumbered=event.unnumbered or not observation.numbered,
        texts=tuple(dict.fromkeys(texts))[:MAX_TEXTS],
        text=observation.text or event.text,
        gpu_instance_id=_instance(event.gpu_instance_id, observation.gpu_instance_id),
        compute_instance_id=_instance(event.compute_instance_id, observation.compute_instance_id),
        fatal=observation.fatal if event.fatal is None else event.fatal or bool(observation.fatal),
    )


def _first(observation: ErrorObservation, boot_id: str) -> Instant:
    return Instant(boot_id, observation.since, observation.wall - (observation.at - observation.since))


def _instance(before: int | None, observed: int | None) -> int | None:
    return None if before is None else common((before, observed))
