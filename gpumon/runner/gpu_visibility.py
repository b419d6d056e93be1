"""Tracks the GPUs of a run: which processes NVML lists on them, and for how long the processes were not read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Protocol

from gpumon.clock import boot_clock
from gpumon.model.gpu_state import GpuState
from gpumon.model.request import DeviceHolder
from gpumon.probe.core.preflight import idle_bytes
from gpumon.runner.gather_facts import OwnProcesses
from gpumon.state.report import Report
from gpumon.supervisor.loop import Loop, Timer

CLOSE_SECONDS = 5.0
"""Seconds after a run in which processes are still read at every poll, so that ended ranks do not count as a job."""
DEPARTURE_PATIENCE = 5.0
"""Max seconds to wait, after the last rank has ended, until NVML no longer lists the ranks."""
DEPARTURE_INTERVAL = 0.1
MAX_STEP = 1.0
"""Max seconds that one observation adds to the unobserved time. If more time passed, the agent itself was delayed."""

Remaining = tuple[DeviceHolder, ...] | None
"""Ranks that NVML still lists, and memory still in use, on the GPUs of an ended run; None if NVML was not read since.
"""


class ReadClosely(Protocol):
    """Callable that sets whether processes, and other readings of the slow tier, are read at every poll."""

    def __call__(self, *, closely: bool) -> None: ...


class GpuVisibility:
    """Tracks the GPUs of the run in progress, and GPUs on which NVML may still list ranks of ended runs."""

    def __init__(self, loop: Loop, latest: Callable[[], Report], read_closely: ReadClosely) -> None:
        self._loop = loop
        self._latest = latest
        self._set_closely = read_closely
        self._in_run = False
        self._stopping = False
        self._relaxing: Timer | None = None
        self.unobserved_seconds: dict[str, float] = {}
        """Seconds since the processes on each GPU of the run were last read, by UUID, as of `observe`."""
        self._read_at: dict[str, float | None] = {}
        """Time of the last reading of each GPU, by UUID, as in the Report."""
        self._observed_at = boot_clock()
        self._remaining_gpus = frozenset[str]()
        """UUIDs of the GPUs on which NVML may still list ranks of ended runs."""
        self.remaining_pids = frozenset[int]()
        """Pids of these ranks."""
        self.used: tuple[str, ...] = ()
        """UUIDs of the GPUs of the run in progress; empty on the CPU."""
        self.watched: tuple[str, ...] = ()
        """UUIDs of the GPUs whose processes are watched: those of `used`, or all GPUs of a run on a simulated node."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """Return the UUIDs of GPUs that a rank uses, or on which NVML may still list an ended rank; () on the CPU."""
        remaining = (gpu.uuid for gpu in self._latest().gpus if gpu.uuid in self._remaining_gpus)
        return tuple(dict.fromkeys((*self.used, *remaining)))

    def begin_run(self) -> None:
        """Read processes at every poll from now on, because a run begins."""
        self._in_run = True
        self._set_closely(closely=True)

    def use(self, used: tuple[str, ...], watched: tuple[str, ...]) -> None:
        """Set the GPUs (UUIDs) of the ranks, and those whose processes are watched."""
        self.used, self.watched = used, watched
        self.unobserved_seconds, self._read_at = dict.fromkeys(watched, 0.0), {}
        self._observed_at = boot_clock()

    def end_run(self) -> None:
        self._in_run = False
        self.use((), ())
        self._relax_later()

    def stop(self) -> None:
        """Stop waiting for ranks to leave the GPUs, because the agent stops."""
        self._stopping = True

    def observe(self) -> None:
        """Update `unobserved_seconds` from the last poll."""
        now, report = boot_clock(), self._latest()
        elapsed, self._observed_at = min(now - self._observed_at, MAX_STEP), now
        states = {state.uuid: state for state in report.gpus if state.gpu.processes is not None}
        for uuid, seconds in self.unobserved_seconds.items():
            gpu = report.inventory.gpus.get(states[uuid].bus_id) if uuid in states else None
            read_at = None if gpu is None else gpu.read_at
            unread = uuid not in states or (read_at is not None and read_at == self._read_at.get(uuid))
            self.unobserved_seconds[uuid] = seconds + elapsed if unread else 0.0
            self._read_at[uuid] = read_at

    def read_closely(self) -> None:
        """Read processes at every poll for the next CLOSE_SECONDS."""
        self._set_closely(closely=True)
        self._relax_later()

    def own_processes(self, pids: frozenset[int], *, arrived: bool, left_at: float | None) -> OwnProcesses:
        """Return the pids of ranks, and the run's GPUs while NVML may list a rank on them.

        `arrived`: whether ranks may have opened GPUs. `left_at`: end of the last pass on the boot clock; None before
        that. The GPUs are included until a poll after it has read their processes.
        """
        there = arrived or (left_at is not None and not _is_read_since(self._latest(), self.used, left_at))
        return OwnProcesses(pids=pids, gpus=self.used if there else ())

    # After the ranks have ended

    def remaining_on(self, gpus: Collection[str], pids: frozenset[int], ended: float) -> Remaining:
        """Return what is left of ranks that `ended` on these GPUs, as the function `remaining_on` does.

        If nothing is left or the agent stops, return () and forget the GPUs.
        """
        remaining = () if self._stopping else remaining_on(self._latest(), gpus, pids, ended)
        if remaining == ():
            self._remaining_gpus -= frozenset(gpus)
            self.remaining_pids = self.remaining_pids if self._remaining_gpus else frozenset()
        return remaining

    def await_departure(self, gpus: tuple[str, ...], pids: frozenset[int], on_departed: Callable[[str], None]) -> None:
        """Call `on_departed` with "" when NVML reports neither these ranks nor memory in use on these GPUs.

        After DEPARTURE_PATIENCE the argument is a sentence about what NVML still lists. This method does not block.
        """
        if not (gpus and pids):
            on_departed("")
            return
        ended = boot_clock()
        self._remaining_gpus |= frozenset(gpus)
        self.remaining_pids |= pids

        def poll() -> None:
            remaining = self.remaining_on(gpus, pids, ended)
            if remaining == ():
                on_departed("")
            elif boot_clock() < ended + DEPARTURE_PATIENCE:
                self._loop.call_after(DEPARTURE_INTERVAL, poll)
            else:
                on_departed(_remark(remaining))

        poll()

    def _relax_later(self) -> None:
        def relax() -> None:
            if not self._in_run:
                self._set_closely(closely=False)

        if self._relaxing is not None:
            self._relaxing.cancel()
        self._relaxing = self._loop.call_after(CLOSE_SECONDS, relax)


def remaining_on(report: Report, gpus: Collection[str], pids: frozenset[int], ended: float) -> Remaining:
    """Return the ranks and the memory that NVML still reported on the GPUs after `ended`; None if it was not read."""
    if not _is_read_since(report, gpus, ended):
        return None
    return tuple(holder for state in report.gpus if state.uuid in gpus for holder in _holders(state, pids))


def _is_read_since(report: Report, gpus: Collection[str], moment: float) -> bool:
    """Return whether the processes of every GPU were read after `moment` (seconds on the boot clock)."""
    read_at = {state.uuid: state.pids_at for state in report.gpus if state.pids is not None}
    return all((read_at.get(uuid) or 0.0) > moment for uuid in gpus)


def _holders(state: GpuState, pids: frozenset[int]) -> Iterator[DeviceHolder]:
    """Yield the ranks that NVML lists on the GPU or, if it lists no process, memory in use with pid 0."""
    for pid in sorted(pids.intersection(state.pids or ())):
        yield DeviceHolder(pid=pid, description=f"rank {pid} of the probe, which NVML still lists on GPU {state.index}")
    used = state.gpu.memory_used_bytes or 0.0
    if used > idle_bytes(exact=state.gpu.memory_reserved_bytes is not None) and not state.pids:
        yield DeviceHolder(pid=0, description=f"GPU {state.index}, which has {used / (1 << 30):.1f} GiB in use")


def _remark(remaining: Remaining) -> str:
    if remaining is None:
        return f"NVML was not read within {DEPARTURE_PATIENCE:g} s: whether the ranks have left the GPUs is unknown."
    there = "; ".join(holder.description for holder in remaining)
    return f"Still there {DEPARTURE_PATIENCE:g} s after the last rank: {there}."
