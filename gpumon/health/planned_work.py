"""Planned work: the maintenance windows and releases, within which errors and verdicts are expected."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gpumon.health.verdict import NODE, Key, VerdictChange, VerdictTransition
from gpumon.model.error_event import SXID, XID, ErrorEvent
from gpumon.model.instant import Instant
from gpumon.model.time_window import Windows

RELEASED_SECONDS = 60.0
"""Seconds after a release for which the NVLinks of a GPU that was reset may still be in training."""
AFTERMATH = frozenset({43, 45, 74, *range(144, 151)})
"""Xids that a GPU reset may cause until RELEASED_SECONDS after the release: of links, and of ended processes."""


@dataclass(frozen=True)
class PlannedWork:
    """Decides whether an error event or a verdict belongs to a maintenance window or to a release."""

    maintenances: Windows
    releases: Windows
    transitions: tuple[VerdictTransition, ...]
    now: Instant

    def in_maintenance(self, event: ErrorEvent) -> bool:
        """Return whether the error event began and ended within one maintenance window."""
        return self._in_maintenance(event.first.wall, event.last.wall)

    def in_release(self, event: ErrorEvent, bus_id: str = NODE) -> bool:
        """Return whether the error event occurred in a release of this GPU or of all GPUs.

        `bus_id`: PCI address of the GPU, or NODE for any GPU. SXids, and the Xids of AFTERMATH, count up to
        RELEASED_SECONDS after a release, while links are trained again.
        """
        is_aftermath = event.kind == SXID or (event.kind == XID and event.code in AFTERMATH)
        grace = RELEASED_SECONDS if is_aftermath else 0.0
        return any(
            begin <= event.first.wall and event.last.wall <= end + grace
            for scope, (begin, end) in self._release_times
            if NODE in (bus_id, scope) or scope == bus_id
        )

    def contains(self, event: ErrorEvent, bus_id: str = NODE) -> bool:
        """Return whether the error event occurred in maintenance or in a release. `bus_id`: as in `in_release`."""
        return self.in_release(event, bus_id) or self.in_maintenance(event)

    def was_in_maintenance(self, transition: VerdictTransition) -> bool:
        """Return whether the verdict was raised in maintenance, and last active or cleared in it.

        `transition`: the one that cleared it. The healthy period before it may end after the maintenance.
        """
        verdict = transition.verdict
        if verdict.episode not in self._maintenance_episodes:
            return False
        last_active = verdict.last_active.on_clock(self.now)
        return transition.muted or self._in_maintenance(last_active, last_active)

    @cached_property
    def maintenance_times(self) -> tuple[tuple[float, float], ...]:
        """Return (start, end) of each maintenance window in seconds since the epoch; one in force ends now."""
        return self._times(self.maintenances)

    def _in_maintenance(self, first: float, last: float) -> bool:
        return any(begin <= first and last <= end for begin, end in self.maintenance_times)

    @cached_property
    def _release_times(self) -> tuple[tuple[str, tuple[float, float]], ...]:
        return tuple(zip((window.bus_id for window in self.releases), self._times(self.releases), strict=True))

    @cached_property
    def _maintenance_episodes(self) -> frozenset[tuple[Key, float]]:
        return frozenset(
            transition.verdict.episode
            for transition in self.transitions
            if transition.change is VerdictChange.RAISED and transition.muted
        )

    def _times(self, windows: Windows) -> tuple[tuple[float, float], ...]:
        """Return (start, end) of each window in seconds since the epoch on the current wall clock."""
        return tuple(
            (
                window.started.on_clock(self.now),
                self.now.wall if window.ended is None else window.end.on_clock(self.now),
            )
            for window in windows
        )
