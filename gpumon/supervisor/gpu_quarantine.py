"""Quarantine of GPUs whose driver calls hang or crash, or whose firmware is silent. Only trials open such a GPU."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gpumon.clock import boot_clock
from gpumon.model.orders import INDEX_PREFIX
from gpumon.model.time_window import NODE
from gpumon.state.messages import Quarantine
from gpumon.supervisor.deadlines import SamplerDeadlines

CRASHES_PER_GPU = 2
"""Number of crashes in calls on one GPU after which the GPU is quarantined."""


@dataclass(frozen=True, slots=True)
class _Entry:
    quarantine: Quarantine
    since: float
    trial_at: float


class GpuQuarantine:
    """The quarantined GPUs by bus id, each with its fault and the time of its next trial."""

    def __init__(self, deadlines: SamplerDeadlines) -> None:
        self._deadlines = deadlines
        self._entries: dict[str, _Entry] = {}
        self._crashes: Counter[str] = Counter()
        """Number of crashes in calls on each GPU since its quarantine last ended, by bus id."""

    def __contains__(self, bus_id: str) -> bool:
        return bus_id in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def state(self) -> Mapping[str, Quarantine]:
        """Return the quarantine (fault, detail and the wall time at which it began) of each quarantined GPU, by bus id.

        GPUs whose bus id could not be read are left out: the check gpu_count_mismatch reports that a GPU is missing.
        """
        return {
            bus_id: entry.quarantine for bus_id, entry in self._entries.items() if not bus_id.startswith(INDEX_PREFIX)
        }

    def add(self, bus_id: str, fault: str, detail: str) -> None:
        """Quarantine a GPU, and schedule its first trial. A GPU that is already quarantined keeps its first fault.

        `fault` is "stuck" or "unknown", `detail` the evidence as text.
        """
        if bus_id not in self._entries:
            now = boot_clock()
            quarantine = Quarantine(fault=fault, detail=detail, wall=time.time())
            self._entries[bus_id] = _Entry(quarantine, now, now + self._deadlines.first_trial)

    def count_crash(self, bus_id: str, call: str) -> None:
        """Count a crash of the sampler in the driver call named `call` on this GPU.

        Quarantine the GPU after CRASHES_PER_GPU crashes, counted since its quarantine last ended.
        """
        self._crashes[bus_id] += 1
        if self._crashes[bus_id] >= CRASHES_PER_GPU:
            self.add(bus_id, "unknown", f"the driver library crashes in {call}")

    def remove(self, bus_id: str) -> None:
        """End the quarantine of a GPU, and reset its crash count. Raise KeyError if it is not quarantined."""
        del self._entries[bus_id]
        self._crashes.pop(bus_id, None)

    def due(self, released: frozenset[str]) -> str | None:
        """Return the bus id of the GPU whose trial has been due for the longest time; None if no trial is due.

        GPUs whose bus ids are in `released` are left out.
        """
        now = boot_clock()
        due = [gpu for gpu, entry in self._entries.items() if entry.trial_at <= now and gpu not in released]
        return min(due, key=lambda gpu: self._entries[gpu].trial_at, default=None)

    def postpone(self, bus_id: str) -> None:
        """Schedule the next trial of a GPU if it is still quarantined after its last trial ended or failed to start."""
        entry = self._entries.get(bus_id)
        if entry is not None:
            early = boot_clock() - entry.since < self._deadlines.early
            pause = self._deadlines.early_trial if early else self._deadlines.late_trial
            self._entries[bus_id] = replace(entry, trial_at=boot_clock() + pause)

    def retry_now(self, bus_id: str) -> None:
        """Make the trial of a quarantined GPU due now, or all trials if `bus_id` is NODE.

        Called after a release, because the GPU may have been repaired in the meantime. The interval between its trials
        is again that of a new quarantine.
        """
        now = boot_clock()
        for gpu in tuple(self._entries) if bus_id == NODE else (bus_id,):
            if gpu in self._entries:
                self._entries[gpu] = replace(self._entries[gpu], since=now, trial_at=now)
