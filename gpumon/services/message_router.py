"""Routes the messages of the sampler to the services that process them."""

from __future__ import annotations

from gpumon.clock import boot_clock
from gpumon.model.snapshot import ChildMessage, DriverStatus, Hello, Logged, Snapshot, TrialResult, XidEvent
from gpumon.model.time_window import NODE, released
from gpumon.services.event_recorder import EventRecorder
from gpumon.state.monitor import Monitor

READY_SECONDS = 10.0
"""Deadline of the first poll. The agent is ready after it, whatever the driver does."""


class MessageRouter:
    """Destination of the sampler's messages. It also detects the end of the first poll."""

    def __init__(self, monitor: Monitor, event_recorder: EventRecorder) -> None:
        self._monitor = monitor
        self._event_recorder = event_recorder
        self._first_poll_by = boot_clock() + READY_SECONDS
        self._polled = False

    def take(self, message: ChildMessage) -> None:
        """Route one message. Messages about the child itself are processed by its supervisor."""
        if isinstance(message, XidEvent):
            self._event_recorder.add_nvml_event(message)
        elif not isinstance(message, (Hello, Logged, TrialResult)):
            self._monitor.take(message)
            self._polled |= _ends_a_poll(message)

    def is_ready(self) -> bool:
        """Return True after the first poll or its deadline, or if the whole node is released."""
        node_is_released = NODE in released(self._monitor.latest.windows)
        return self._polled or node_is_released or boot_clock() > self._first_poll_by


def _ends_a_poll(message: ChildMessage) -> bool:
    if isinstance(message, Snapshot):
        return message.complete
    return isinstance(message, DriverStatus) and not message.up
