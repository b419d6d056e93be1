"""Quarantine of subjects (GPUs, devices, readers) whose calls hang or crash. Only trials touch such a subject."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from gpumon.clock import boot_clock
from gpumon.model.snapshot import Quarantine
from gpumon.supervisor.deadlines import Deadlines


@dataclass(frozen=True, slots=True)
class _Entry:
    quarantine: Quarantine
    since: float
    pause: float
    trial_at: float


class SubjectQuarantine:
    """The quarantined subjects of one kind of children by name, each with its fault and the time of its next trial."""

    def __init__(self, deadlines: Deadlines, max_crashes: int | None) -> None:
        """Create it without subjects. `max_crashes`: crashes in calls on a subject after which it is quarantined."""
        self._deadlines = deadlines
        self._max_crashes = max_crashes
        self._entries: dict[str, _Entry] = {}
        self._crashes: Counter[str] = Counter()
        """Number of crashes in calls on each subject since its quarantine last ended."""

    def __contains__(self, subject: str) -> bool:
        return subject in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def state(self) -> Mapping[str, Quarantine]:
        """Return fault, detail and begin (wall time) by subject."""
        return {subject: entry.quarantine for subject, entry in self._entries.items()}

    def add(self, subject: str, fault: str, detail: str) -> None:
        """Quarantine a subject, and schedule its first trial. A quarantined subject keeps its first fault.

        `fault` is "stuck" or "unknown", `detail` the evidence as text.
        """
        if subject not in self._entries:
            now, pause = boot_clock(), self._deadlines.first_trial
            quarantine = Quarantine(fault=fault, detail=detail, wall=time.time())
            self._entries[subject] = _Entry(quarantine, now, pause, now + pause)

    def count_crash(self, subject: str, call: str) -> None:
        """Count a crash of the child in the call named `call` on this subject. Quarantine it after `max_crashes`."""
        self._crashes[subject] += 1
        if self._max_crashes is not None and self._crashes[subject] >= self._max_crashes:
            self.add(subject, "unknown", f"the driver library crashes in {call}")

    def remove(self, subject: str) -> None:
        """End the quarantine of a subject, and reset its crash count. Raise KeyError if it is not quarantined."""
        del self._entries[subject]
        self._crashes.pop(subject, None)

    def due(self, without: Collection[str] = ()) -> str | None:
        """Return the subject whose trial has been due for the longest time; None if no trial is due.

        Subjects in `without` are left out.
        """
        now = boot_clock()
        due = [subject for subject, entry in self._entries.items() if entry.trial_at <= now and subject not in without]
        return min(due, key=lambda subject: self._entries[subject].trial_at, default=None)

    def postpone(self, subject: str) -> None:
        """Schedule the next trial of a subject if it is still quarantined after a trial ended or failed to start."""
        entry = self._entries.get(subject)
        if entry is not None:
            now = boot_clock()
            pause = self._deadlines.pause(entry.pause, now - entry.since)
            self._entries[subject] = replace(entry, pause=pause, trial_at=now + pause)

    def retry_now(self, subjects: Collection[str]) -> None:
        """Make the trials of these subjects due now. The interval between trials is again that of a new quarantine.

        Called after a release, because the GPU may have been repaired in the meantime.
        """
        now = boot_clock()
        for subject in self._entries.keys() & set(subjects):
            self._entries[subject] = replace(self._entries[subject], since=now, trial_at=now)
