"""GPU visibility: the GPUs of a run, the processes on them, and for how long those were not read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from gpumon.clock import boot_clock
from gpumon.model.gpu_state import GpuState
from gpumon.model.request_result import DeviceHolder
from gpumon.probe.core.preflight import idle_bytes
from gpumon.probe.runner.gather_facts import OwnProcesses
from gpumon.state.report import Report
from gpumon.supervisor.loop import Loop, Timer

CLOSE_SECONDS = 5.0
"""How long after a run processes are still read at every poll: remains of ranks must not count as a job."""
DEPARTURE_PATIENCE = 5.0
"""Seconds after the end of the last rank within which a reading of NVML must no longer list it."""
DEPARTURE_INTERVAL = 0.1
MAX_STEP = 1.0
"""Seconds that one observation can add. If more time passed, the agent itself was held up and has not read yet."""

Remaining = tuple[DeviceHolder, ...] | None
"""Processes that are still on a GPU, in words; None if not read yet."""


class ReadClosely(Protocol):
    """Sets whether processes, and other slow readings, are read at every poll."""

    def __call__(self, *, closely: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Remains:
    """GPUs and pids of ended runs that NVML may still list."""

    gpus: frozenset[str] = frozenset()
    """UUIDs."""
    pids: frozenset[int] = frozenset()

    def add(self, gpus: Collection[str], pids: frozenset[int]) -> Remains:
        """Return the remains after these ranks have ended on these GPUs too."""
        return Remains(self.gpus | frozenset(gpus), self.pids | pids)

    def without(self, gpus: Collection[str]) -> Remains:
        """Return the remains without these GPUs: NVML lists nothing of the runs there."""
        rest = self.gpus - frozenset(gpus)
        return Remains(rest, self.pids) if rest else Remains()


class GpuVisibility:
    """The GPUs of the run in progress, and of runs that NVML may still list."""

    def __init__(self, loop: Loop, latest: Callable[[], Report], read_closely: ReadClosely) -> None:
        self._loop = loop
        self._latest = latest
        self._set_closely = read_closely
        self._in_run = False
        self._stopping = False
        self._relaxing: Timer | None = None
        self._unobserved = UnobservedTime()
        self.remains = Remains()
        self.used: tuple[str, ...] = ()
        """UUIDs of the GPUs of the run in progress; empty on the CPU."""
        self.watched: tuple[str, ...] = ()
        """The same; on a simulated node the GPUs that the ranks would use."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the GPUs on which something of a run is, or may be; empty on the CPU."""
        remaining = (gpu.uuid for gpu in self._latest().gpus if gpu.uuid in self.remains.gpus)
        return tuple(dict.fromkeys((*self.used, *remaining)))

    @property
    def unobserved_seconds(self) -> Mapping[str, float]:
        """Seconds since processes on each GPU of the run were last read, by UUID."""
        return self._unobserved.seconds

    def begin_run(self) -> None:
        """Read processes at every poll from now on."""
        self._in_run = True
        self._set_closely(closely=True)

    def use(self, used: tuple[str, ...], watched: tuple[str, ...]) -> None:
        """Set the GPUs of the run."""
        self.used, self.watched = used, watched
        self._unobserved = UnobservedTime(watched)

    def end_run(self) -> None:
        self._in_run = False
        self.use((), ())
        self._relax_later()

    def stop(self) -> None:
        """Wait for no GPU any more: the agent stops."""
        self._stopping = True

    def observe(self) -> None:
        """Update the time since processes on the GPUs were last read."""
        self._unobserved.observe(self._latest())

    def read_closely(self) -> None:
        """Read processes at every poll for the next CLOSE_SECONDS."""
        self._set_closely(closely=True)
        self._relax_later()

    def own_processes(self, pids: frozenset[int], *, arrived: bool, left_at: float | None) -> OwnProcesses:
        """Return the agent's own processes. A rank that has ended counts until a poll no longer lists it."""
        there = arrived or (left_at is not None and not _is_read_since(self._latest(), self.used, left_at))
        return OwnProcesses(pids=pids, gpus=self.used if there else ())

    # After the ranks have ended

    def remaining_on(self, gpus: Collection[str], pids: frozenset[int], ended: float) -> Remaining:
        """Return what remains of ranks that ended at this time of the boot clock."""
        remaining = () if self._stopping else remaining_on(self._latest(), gpus, pids, ended)
        if remaining == ():
            self.remains = self.remains.without(gpus)
        return remaining

    def await_departure(self, gpus: tuple[str, ...], pids: frozenset[int], on_departed: Callable[[str], None]) -> None:
        """Wait until NVML lists the ranks no more. `on_departed` gets a sentence about what remains, else ""."""
        if not (gpus and pids):
            on_departed("")
            return
        ended = boot_clock()
        self.remains = self.remains.add(gpus, pids)

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
        if self._relaxing is not None:
            self._relaxing.cancel()
        self._relaxing = self._loop.call_after(CLOSE_SECONDS, self._relax)

    def _relax(self) -> None:
        if not self._in_run:
            self._set_closely(closely=False)


class UnobservedTime:
    """Time since processes on some GPUs were last read. A job that starts meanwhile is not noticed."""

    def __init__(self, gpus: Collection[str] = ()) -> None:
        self._seconds = dict.fromkeys(gpus, 0.0)
        self._read_at: dict[str, float | None] = {}
        """When each GPU was last read, as the Report has it."""
        self._observed_at = boot_clock()

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds by UUID."""
        return self._seconds

    def observe(self, report: Report) -> None:
        now = boot_clock()
        elapsed, self._observed_at = min(now - self._observed_at, MAX_STEP), now
        states = {state.uuid: state for state in report.gpus if state.gpu.processes is not None}
        for uuid, seconds in self._seconds.items():
            gpu = report.internal.inventory.gpus.get(states[uuid].bus_id) if uuid in states else None
            read_at = None if gpu is None else gpu.read_at
            unread = uuid not in states or (read_at is not None and read_at == self._read_at.get(uuid))
            self._seconds[uuid] = seconds + elapsed if unread else 0.0
            self._read_at[uuid] = read_at


def remaining_on(report: Report, gpus: Collection[str], pids: frozenset[int], ended: float) -> Remaining:
    """Return what NVML lists after the end of the ranks; before them no other process used the GPUs."""
    if not _is_read_since(report, gpus, ended):
        return None
    return tuple(holder for state in report.gpus if state.uuid in gpus for holder in _holders(state, pids))


def _is_read_since(report: Report, gpus: Collection[str], moment: float) -> bool:
    """Return whether the processes of each GPU were read after this moment of the boot clock."""
    read_at = {state.uuid: state.pids_at for state in report.gpus if state.pids is not None}
    return all((read_at.get(uuid) or 0.0) > moment for uuid in gpus)


def _holders(state: GpuState, pids: frozenset[int]) -> Iterator[DeviceHolder]:
    """Yield ranks on the GPU. Memory in use counts only if no other process is there."""
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
