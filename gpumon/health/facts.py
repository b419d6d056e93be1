"""Facts, the input of every check: the state of the node at one time. GpuCase and PortCase: one device. Frozen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from gpumon.health.catalogue import SHIPPED, Catalogue
from gpumon.health.planned_work import PlannedWork
from gpumon.health.policy import Limit, Policy
from gpumon.health.products import Expectation
from gpumon.health.sample_windows import (
    STEP,
    CounterGrowth,
    SampleHistory,
    SampleWindow,
    WindowSeries,
    by_device,
    with_labels,
)
from gpumon.health.verdict import JOB, NODE, Clearance, Key, Verdict, VerdictTransition
from gpumon.model.error_event import XID, ErrorEvent
from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.instant import Instant, Now
from gpumon.model.job import Job
from gpumon.model.node import Node
from gpumon.model.records import AgentRun, PortRecord
from gpumon.model.snapshot import PortReading, StuckProcess
from gpumon.model.time_window import TimeWindow, WindowKind, Windows, last_to_end
from gpumon.probe.core.state import ProbeState


class ThresholdOffError(Exception):
    """Raised while a check is evaluated if a threshold that it needs is off. The finding of the check is then OFF."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that a check may read: the state of the node at the time of one evaluation."""

    now: Now
    boot_id: str = ""
    node: Node = Node()
    gpus: tuple[GpuState, ...] = ()
    ports: tuple[PortReading, ...] = ()
    gone_ports: Mapping[str, float] = field(default_factory=dict)
    """Time (seconds since the epoch) since which a port is missing while others can be read, by `device/port`."""
    known_ports: Mapping[str, PortRecord] = field(default_factory=dict)
    """Stored record of each port by `device/port`. It survives restarts and reboots."""
    ports_listed: bool = False
    """Whether the ports of the host could be listed, so that `ports` is complete."""
    events: tuple[ErrorEvent, ...] = ()
    """Error events, newest last. Their times are on the wall clock as it is set now."""
    stuck: tuple[StuckProcess, ...] | None = None
    """Processes that hold a GPU and are blocked in the kernel; None if processes cannot be read."""
    holders: Mapping[str, str] = field(default_factory=dict)
    """Owners of a GPU, with the names that every reader may know, by uuid."""
    jobs: tuple[Job, ...] = ()
    contained: bool | None = None
    """True if NVML lists only the processes of the agent's own container; None if unknown."""
    recalled: bool = True
    """Whether the stored state has been read since the agent's start."""
    lost_to: str = ""
    """New path of the damaged store that was replaced by an empty one at this start; empty if the store was intact."""
    started: float = 0.0
    """Start of the agent in seconds since the epoch."""
    interval: float = 1.0
    """Seconds between polls of the fast readings."""
    catalogue: Catalogue = SHIPPED
    history: SampleHistory = field(default_factory=SampleHistory)
    notices: Mapping[str, str] = field(default_factory=dict)
    """Texts, by subject (store, links, driver, ...), that state what the agent cannot do at present."""
    excluded: tuple[str, ...] = ()
    """PCI addresses of the GPUs that the configuration excludes."""
    bus: Mapping[str, str] | None = None
    """Bound kernel driver by PCI address, for each NVIDIA GPU on the bus; None until the bus was read."""
    nvswitches: int = 0
    """Number of NVSwitches on the PCI bus."""
    policy: Policy = Policy()
    open: Mapping[Key, Verdict] = field(default_factory=dict)
    """Open verdicts."""
    failing_checks: Mapping[Key, str] = field(default_factory=dict)
    """Text of the exception by check and device, for checks that failed in the previous evaluation."""
    agent_runs: tuple[AgentRun, ...] = ()
    """Runs of the agent, the current one last."""
    expectation: Expectation = Expectation()
    """Expected number of GPUs."""
    gone: frozenset[str] = frozenset()
    """uuids of GPUs, and `device/port` of ports, that are no longer expected."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Version of the software that every job uses, by component (driver, nccl), if it is reported."""
    maintenances: Windows = ()
    """Maintenance windows, newest last, including those that have ended."""
    releases: Windows = ()
    """Windows in which a GPU was released, newest last, including those that have ended."""
    probe: ProbeState = ProbeState()
    probe_intervals: Mapping[str, float] = field(default_factory=dict)
    """Max seconds between scheduled runs of each scheduled probe, by name."""
    probe_gated: bool = False
    """Whether a gate command asks the scheduler before each run."""
    held: bool = False
    """Whether an operator's or scheduler's hold forbids probe runs."""
    transitions: tuple[VerdictTransition, ...] = ()
    """Transitions of verdicts, newest last."""
    cleared: Mapping[Key, float] = field(default_factory=dict)
    """Time (current wall clock) at which the verdict of each key was last cleared. Earlier events no longer count."""
    counted_from: float = 0.0
    """Time in seconds since the epoch before which samples do not count, in any window."""

    @cached_property
    def gpu_cases(self) -> tuple[GpuCase, ...]:
        return tuple(GpuCase(state, self) for state in self.gpus)

    @cached_property
    def port_cases(self) -> tuple[PortCase, ...]:
        return tuple(PortCase(port, self) for port in self.ports)

    @cached_property
    def job_cases(self) -> tuple[JobCase, ...]:
        return tuple(JobCase(job, self) for job in self.jobs)

    def job_holds(self, job: str, uuid: str) -> bool:
        """Return whether a job, as verdicts name it, holds a GPU."""
        return any(job == JOB + each.id and any(gpu.uuid == uuid for gpu in each.gpus) for each in self.jobs)

    @property
    def instant(self) -> Instant:
        """Return the time of this evaluation."""
        return Instant(self.boot_id, self.now.at, self.now.wall)

    def age(self, transition: VerdictTransition) -> float:
        """Return the seconds since a transition of a verdict."""
        return self.now.wall - transition.time.on_clock(self.instant)

    @cached_property
    def errors(self) -> Mapping[str, tuple[ErrorEvent, ...]]:
        """Return the error events by device (ErrorEvent.device), newest last.

        Those from before the first start of the agent on this host (`historical`) are left out. An Xid without
        a uuid is listed under the uuid of the GPU at its PCI address, if there is such a GPU.
        """
        uuids = {state.bus_id: state.uuid for state in self.gpus}
        by_device: dict[str, list[ErrorEvent]] = {}
        for event in self.events:
            if not event.historical:
                unnamed = event.kind == XID and event.uuid is None
                device = uuids.get(event.bus_id, event.device) if unnamed else event.device
                by_device.setdefault(device, []).append(event)
        return {device: tuple(events) for device, events in by_device.items()}

    def events_since(self, kind: str, since: float) -> Iterator[ErrorEvent]:
        """Yield the error events of this kind after `since` (seconds since the epoch), except historical ones."""
        for event in self.events:
            if event.kind == kind and event.last.wall > since and not event.historical:
                yield event

    @property
    def maintenance(self) -> TimeWindow | None:
        """Return the maintenance window in force (of several, the one that ends last); None if none is in force."""
        return last_to_end(self.maintenances, WindowKind.MAINTENANCE)

    @cached_property
    def planned_work(self) -> PlannedWork:
        """Return the object that decides whether an event or verdict belongs to a maintenance window or a release."""
        return PlannedWork(self.maintenances, self.releases, self.transitions, self.instant)

    @cached_property
    def repairs_by_device(self) -> Mapping[str, tuple[VerdictTransition, ...]]:
        """Return the transitions, by device, in which a reset or a reboot outside of maintenance cleared a verdict."""
        by_device: dict[str, list[VerdictTransition]] = {}
        for transition in self.transitions:
            repaired = transition.cleared_by in {Clearance.RESET, Clearance.REBOOT}
            if repaired and not self.planned_work.was_in_maintenance(transition):
                by_device.setdefault(transition.verdict.device, []).append(transition)
        return {device: tuple(transitions) for device, transitions in by_device.items()}

    def limit(self, limit: Limit) -> float | None:
        """Return the threshold in force; None if it is off."""
        return self.policy.limit(limit)

    def threshold(self, limit: Limit) -> float:
        """Return the threshold in force, for a check that needs it. Raise ThresholdOffError if it is off."""
        value = self.limit(limit)
        if value is None:
            raise ThresholdOffError
        return value

    def any_threshold(self, *limits: Limit) -> tuple[float | None, ...]:
        """Return these thresholds, for a check that needs one of them. Raise ThresholdOffError if all are off."""
        values = tuple(self.limit(limit) for limit in limits)
        if all(value is None for value in values):
            raise ThresholdOffError
        return values

    def series(
        self, window: SampleWindow, device: str = NODE, *, since: float | None = None
    ) -> tuple[WindowSeries, ...]:
        """Return every series of the window on this device. `since`: wall time, if later than its start."""
        seconds = min(window.seconds, max(0.0, self.now.wall - max(since or 0.0, self.counted_from)))
        if seconds < window.seconds:
            return by_device(self.history.series(window.metric, seconds, self.now.at)).get(device, ())
        if window not in self._series:
            self._series[window] = by_device(self.history.series(window.metric, seconds, self.now.at))
        return self._series[window].get(device, ())

    def growth(
        self, window: SampleWindow, device: str = NODE, *, since: float | None = None
    ) -> tuple[CounterGrowth, ...]:
        """Return every counter of the window's metric that increased on this device in the window, with its increases.

        `since`: seconds since the epoch. Increases until STEP seconds after it do not count, because the newest point
        of the history may still be replaced. The call is cheap if all counters are constant.
        """
        if window not in self._growth:
            self._growth[window] = by_device(self.history.growth(window.metric, window.seconds, self.now.at))
        growths = self._growth[window].get(device, ())
        begin = self.now.at - (self.now.wall - max(since or 0.0, self.counted_from)) + STEP
        if not growths or begin <= self.now.at - window.seconds:
            return growths
        cut = (CounterGrowth(each.labels, tuple(step for step in each.steps if step[0] > begin)) for each in growths)
        return tuple(each for each in cut if each.steps)

    def wall(self, at: float) -> float:
        """Convert a boot clock time of this boot to seconds since the epoch."""
        return self.now.wall_at(at)

    @cached_property
    def _growth(self) -> dict[SampleWindow, Mapping[str, tuple[CounterGrowth, ...]]]:
        return {}

    @cached_property
    def _series(self) -> dict[SampleWindow, Mapping[str, tuple[WindowSeries, ...]]]:
        return {}


class _DeviceCase(ABC):
    """One device that a check evaluates: base class of GpuCase, PortCase and JobCase."""

    __slots__ = ()
    facts: Facts

    @property
    @abstractmethod
    def device(self) -> str:
        """Return the device as verdicts name it, see `Verdict.device`."""

    def series(self, window: SampleWindow, *, since: float | None = None) -> tuple[WindowSeries, ...]:
        """Return the series of this device in the window. `since`: as in Facts.series."""
        return self.facts.series(window, self.device, since=since)

    def growth(self, window: SampleWindow, *, since: float | None = None) -> tuple[CounterGrowth, ...]:
        """Return the counters of this device that increased in the window. `since`: as in Facts.growth."""
        return self.facts.growth(window, self.device, since=since)

    def mean(self, window: SampleWindow, **labels: str) -> float | None:
        """Return the mean of the series with these labels; None if its samples cover too little of the window."""
        series = self._covering(window, **labels)
        return series and series.mean

    def median(self, window: SampleWindow, **labels: str) -> float | None:
        """Return the median of the series with these labels; None if its samples cover too little of the window."""
        series = self._covering(window, **labels)
        return series and series.median

    def _covering(self, window: SampleWindow, **labels: str) -> WindowSeries | None:
        series = with_labels(self.series(window), **labels)
        return series if series is not None and series.covers(window) else None

    def has_verdict(self, check: str) -> bool:
        return (check, self.device) in self.facts.open

    def time_cleared(self, check: str) -> float | None:
        """Return when this check's verdict on the device was last cleared (seconds since the epoch); None if never."""
        return self.facts.cleared.get((check, self.device))


@dataclass(frozen=True, slots=True)
class GpuCase(_DeviceCase):
    """One GPU that a check evaluates, with the facts of the evaluation."""

    state: GpuState
    facts: Facts

    @property
    def device(self) -> str:
        return self.state.uuid

    @property
    def now(self) -> Gpu:
        """Return the current readings of the GPU. While the GPU does not answer or is released, nearly all are None."""
        return self.state.gpu

    def events(self, check: str) -> Iterator[ErrorEvent]:
        """Yield the GPU's Xids since this check's verdict on it was last cleared, except those during its release."""
        cleared = self.time_cleared(check) or 0.0
        for event in self.facts.errors.get(self.device, ()):
            if event.last.wall > cleared and not self.facts.planned_work.in_release(event, self.state.bus_id):
                yield event


@dataclass(frozen=True, slots=True)
class PortCase(_DeviceCase):
    """One InfiniBand or RoCE port that a check evaluates, with the facts of the evaluation."""

    port: PortReading
    facts: Facts

    @property
    def device(self) -> str:
        return f"{self.port.device}/{self.port.port}"

    @property
    def neighbours(self) -> str:
        """Return a sentence about the GPUs below the same PCIe switch, beginning with a space; "" if there are none."""
        gpus = [str(state.index) for state in self.facts.gpus if state.bus_id in self.port.placement.gpus]
        return f" It is on the PCIe switch of GPU {', '.join(gpus)}." if gpus else ""


@dataclass(frozen=True, slots=True)
class JobCase(_DeviceCase):
    """One job with GPUs of this node that a check evaluates, with the facts of the evaluation."""

    job: Job
    facts: Facts

    @property
    def device(self) -> str:
        return JOB + self.job.id
