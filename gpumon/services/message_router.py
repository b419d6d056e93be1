"""Passes each message from the sampler child process to the service that processes the message."""

from __future__ import annotations

from gpumon.clock import boot_clock
from gpumon.model.error_event import ErrorObservation
from gpumon.model.frame import Frame
from gpumon.model.snapshot import DriverStatus, Hello, Logged, Snapshot, TrialResult
from gpumon.model.time_window import NODE, released_scopes
from gpumon.services.event_recorder import EventRecorder
from gpumon.state.monitor import Monitor

READY_SECONDS = 10.0
"""Seconds until the agent counts as ready although no poll has ended, for example because the driver hangs."""


class MessageRouter:
    """Receives all messages from the sampler child process, and detects the end of the first poll."""

    def __init__(self, monitor: Monitor, event_recorder: EventRecorder) -> None:
        self._monitor = monitor
        self._event_recorder = event_recorder
        self._first_poll_by = boot_clock() + READY_SECONDS
        self._polled = False

    def take(self, message: Frame) -> None:
        """Pass an Xid to the event recorder, and any other message to the monitor, which updates the Report.

        Ignore Hello, Logged and TrialResult, which the supervisor of the child has already processed.
        """
        if isinstance(message, ErrorObservation):
            self._event_recorder.add_nvml_event(message)
        elif not isinstance(message, (Hello, Logged, TrialResult)):
            self._monitor.take(message)
            self._polled |= _ends_a_poll(message)

    def is_ready(self) -> bool:
        """Return True after the end of the first poll or after READY_SECONDS, or if the whole node is released."""
        node_is_released = NODE in released_scopes(self._monitor.latest.windows)
        return self._polled or node_is_released or boot_clock() > self._first_poll_by


def _ends_a_poll(message: Frame) -> bool:
    if isinstance(message, Snapshot):
        return message.complete
    return isinstance(message, DriverStatus) and not message.up
