"""What a check is given: the Report at one moment and what it looks back on. Frozen, and cheap to ask."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from gpumon.health.agent_runs import AgentRun
from gpumon.health.catalogue import SHIPPED, Catalogue, Explanation
from gpumon.health.expectation import Expectation
from gpumon.health.policy import Limit, Policy
from gpumon.health.sample_windows import (
    STEP,
    CounterGrowth,
    SampleHistory,
    SampleWindow,
    WindowSeries,
    growth_by_device,
    series_by_device,
    with_labels,
)
from gpumon.health.terms import Way
from gpumon.health.verdict import NODE, Key, Verdict, VerdictChange, VerdictTransition
from gpumon.model.error_event import XID, ErrorEvent
from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.maintenance import Known, Maintenance, in_force
from gpumon.model.node import Driver, Node
from gpumon.model.now import Now
from gpumon.model.port_record import PortRecord
from gpumon.model.snapshot import PortReading, StuckProcess
from gpumon.probe.core.state import ProbeState


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that a check may look at."""

    now: Now
    boot_id: str = ""
    node: Node = Node()
    driver: Driver = Driver()
    gpus: tuple[GpuState, ...] = ()
    ports: tuple[PortReading, ...] = ()
    gone_ports: Mapping[str, float] = field(default_factory=dict)
    """Those of `ports` that are gone while others can be read: since when, in seconds since the epoch."""
    known_ports: Mapping[str, PortRecord] = field(default_factory=dict)
    """What is remembered of `ports`, over restarts and reboots."""
    ports_listed: bool = False
    """There are no ports but `ports`."""
    events: tuple[ErrorEvent, ...] = ()
    """The newest last; their times by the wall clock as it is set now."""
    stuck: tuple[StuckProcess, ...] | None = None
    """Processes that hold a GPU and do not come back from the kernel; None: nobody can tell."""
    contained: bool | None = None
    """NVML names the processes of a container alone; None: nobody can tell."""
    recalled: bool = True
    """What the store knew is known."""
    interval: float = 1.0
    """Of the fast polls, in seconds."""
    catalogue: Catalogue = SHIPPED
    history: SampleHistory = field(default_factory=SampleHistory)
    notices: Mapping[str, str] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()
    """Bus ids of the GPUs that the configuration excludes."""
    bus: Mapping[str, str] | None = None
    """Bus id of each NVIDIA GPU -> driver bound; None until somebody looked."""
    policy: Policy = Policy()
    open: Mapping[Key, Verdict] = field(default_factory=dict)
    """The verdicts that there are."""
    broken: Mapping[Key, str] = field(default_factory=dict)
    """Checks that failed in the look before, by the device they failed on: what was raised."""
    agent_runs: tuple[AgentRun, ...] = ()
    """Of the agent, the present one last."""
    expectation: Expectation = Expectation()
    """How many GPUs should be here."""
    gone: frozenset[str] = frozenset()
    """uuids of GPUs, and names of ports, that were here and are expected no more."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of what every job on the node uses, as far as it is known: driver, nccl."""
    maintenances: Known = ()
    """The newest last."""
    probe: ProbeState = ProbeState()
    """The all-reduce."""
    probe_interval: float = 21600.0
    """Seconds between its runs by schedule."""
    probe_gated: bool = False
    """A command asks the scheduler for the node before each."""
    held: bool = False
    """Somebody holds the GPUs for a job: no probe may run."""
    transitions: tuple[VerdictTransition, ...] = ()
    """What became of verdicts, the newest last."""
    cleared: Mapping[Key, float] = field(default_factory=dict)
    """When a verdict was last cleared, by the wall clock as it is set now: what came before it no longer counts."""

    def on_this_clock(self, wall: float, at: float, boot_id: str) -> float:
        """When something was, by the wall clock as it is set now. `at`: on the boot clock of that boot.

        What was before this boot is not after it, whatever the clock said then.
        """
        if boot_id == self.boot_id:
            return self.wall(at)
        return min(wall, self.wall(0.0))

    def age(self, transition: VerdictTransition) -> float:
        """Seconds since then."""
        return self.now.wall - self.on_this_clock(transition.wall, transition.at, transition.boot_id)

    @property
    def uptime(self) -> float:
        """Seconds since the host was booted."""
        return self.now.at

    def explained(self, event: ErrorEvent) -> Explanation:
        """What it means on this host."""
        if event.id not in self._explained:
            self._explained[event.id] = self.catalogue.explain(event)
        return self._explained[event.id]

    @cached_property
    def _explained(self) -> dict[str, Explanation]:
        return {}

    @cached_property
    def errors(self) -> Mapping[str, tuple[ErrorEvent, ...]]:
        """What is news, by device, the newest last: what stood in the log before the agent was installed is not."""
        named = {state.bus_id: state.uuid for state in self.gpus}
        found: dict[str, list[ErrorEvent]] = {}
        for event in self.events:
            if not event.historical:
                unnamed = event.kind == XID and event.uuid is None
                found.setdefault(named.get(event.bus_id, event.device) if unnamed else event.device, []).append(event)
        return {device: tuple(events) for device, events in found.items()}

    @property
    def maintenance(self) -> Maintenance | None:
        """In which nothing pages now, and no reboot is a fault."""
        return in_force(self.maintenances)

    def planned(self, event: ErrorEvent) -> bool:
        """Whether all of it came in one maintenance: somebody was at work there, and it counts against nothing."""
        return self._in_maintenance(event.first_wall, event.last_wall)

    def of_maintenance(self, transition: VerdictTransition) -> bool:
        """Whether what was cleared was so in maintenance alone: it is the work that was done there.

        It may have taken until after its end to be proved well.
        """
        verdict = transition.verdict
        if verdict.episode not in self._planned:
            return False
        seen = self.on_this_clock(verdict.seen, verdict.seen_at, verdict.boot_id)
        return transition.muted or self._in_maintenance(seen, seen)

    def _in_maintenance(self, first: float, last: float) -> bool:
        return any(begin <= first and last <= end for begin, end in self.worked_on)

    @cached_property
    def worked_on(self) -> tuple[tuple[float, float], ...]:
        """From when until when the node was in maintenance, by the wall clock as it is set now."""
        return tuple(
            (
                self.on_this_clock(one.began, one.began_at, one.boot_id),
                self.now.wall if one.ended is None else self.on_this_clock(one.ended, one.deadline, one.boot_id),
            )
            for one in self.maintenances
        )

    @cached_property
    def _planned(self) -> frozenset[tuple[Key, float]]:
        return frozenset(
            one.verdict.episode for one in self.transitions if one.change is VerdictChange.RAISED and one.muted
        )

    @cached_property
    def cures(self) -> Mapping[str, tuple[VerdictTransition, ...]]:
        """What a reset or a reboot has cleared, by device; not what was done in maintenance."""
        found: dict[str, list[VerdictTransition]] = {}
        for one in self.transitions:
            repaired = one.change is VerdictChange.CLEARED and one.way in {Way.RESET, Way.REBOOT}
            if repaired and not self.of_maintenance(one):
                found.setdefault(one.verdict.device, []).append(one)
        return {device: tuple(transitions) for device, transitions in found.items()}

    @cached_property
    def gpu_cases(self) -> tuple[GpuCase, ...]:
        return tuple(GpuCase(state, self) for state in self.gpus)

    @cached_property
    def port_cases(self) -> tuple[PortCase, ...]:
        return tuple(PortCase(port, self) for port in self.ports)

    def limit(self, one: Limit) -> float | None:
        """The number in force; None: switched off."""
        return self.policy.limit(one)

    def series(
        self, window: SampleWindow, device: str = NODE, *, since: float | None = None
    ) -> tuple[WindowSeries, ...]:
        """Return every series of the metric that this device has in the window, with its other labels.

        `since`: seconds since the epoch before which nothing counts, if that is later than the start of the window.
        """
        seconds = window.seconds if since is None else min(window.seconds, max(0.0, self.now.wall - since))
        if seconds < window.seconds:
            return series_by_device(self.history, window, seconds, self.now.at).get(device, ())
        if window not in self._series:
            self._series[window] = series_by_device(self.history, window, seconds, self.now.at)
        return self._series[window].get(device, ())

    def growth(
        self, window: SampleWindow, device: str = NODE, *, since: float | None = None
    ) -> tuple[CounterGrowth, ...]:
        """Return every counter of the metric that increased on this device in the window; cheap if all are constant.

        `since`: as in `series`, plus the seconds in which the newest point of the history may still be replaced.
        """
        if window not in self._growth:
            self._growth[window] = growth_by_device(self.history, window, self.now.at)
        growths = self._growth[window].get(device, ())
        begin = self.now.at - (self.now.wall - since) + STEP if since is not None else 0.0
        if not growths or begin <= self.now.at - window.seconds:
            return growths
        cut = (CounterGrowth(each.labels, tuple(step for step in each.steps if step[0] > begin)) for each in growths)
        return tuple(each for each in cut if each.steps)

    def wall(self, at: float) -> float:
        """Return a boot clock time in seconds since the epoch."""
        return self.now.wall - (self.now.at - at)

    @cached_property
    def _growth(self) -> dict[SampleWindow, Mapping[str, tuple[CounterGrowth, ...]]]:
        return {}

    @cached_property
    def _series(self) -> dict[SampleWindow, Mapping[str, tuple[WindowSeries, ...]]]:
        return {}


class _Case(ABC):
    """What is asked of a device, whichever it is."""

    __slots__ = ()
    facts: Facts

    @property
    @abstractmethod
    def device(self) -> str:
        """As verdicts name it."""

    def series(self, window: SampleWindow, *, since: float | None = None) -> tuple[WindowSeries, ...]:
        """Return the device's series, as Facts.series."""
        return self.facts.series(window, self.device, since=since)

    def growth(self, window: SampleWindow, *, since: float | None = None) -> tuple[CounterGrowth, ...]:
        """Return the device's counters that increased, as Facts.growth."""
        return self.facts.growth(window, self.device, since=since)

    def mean(self, window: SampleWindow, **labels: str) -> float | None:
        """Return the mean over the window; None if its samples cover too little of it."""
        series = with_labels(self.series(window), **labels)
        return None if series is None or not series.covers(window) else series.mean

    def peak(self, window: SampleWindow, **labels: str) -> float | None:
        """Return the highest value in the window; None if its samples cover too little of it."""
        series = with_labels(self.series(window), **labels)
        return None if series is None or not series.covers(window) else max(series.values)

    def has_verdict(self, check: str) -> bool:
        return (check, self.device) in self.facts.open

    def cleared(self, check: str) -> float | None:
        """When the verdict of this check on it was last cleared, in seconds since the epoch."""
        return self.facts.cleared.get((check, self.device))


@dataclass(frozen=True, slots=True)
class GpuCase(_Case):
    """One GPU."""

    state: GpuState
    facts: Facts

    @property
    def device(self) -> str:
        return self.state.uuid

    @property
    def now(self) -> Gpu:
        """Its readings; all None while it does not answer, or is released."""
        return self.state.gpu

    def events(self, check: str) -> Iterator[ErrorEvent]:
        """Its Xids, the newest last: those of before the agent was installed, or that verdict was cleared, are over."""
        cleared = self.cleared(check) or 0.0
        for event in self.facts.errors.get(self.device, ()):
            if event.last_wall > cleared:
                yield event


@dataclass(frozen=True, slots=True)
class PortCase(_Case):
    """One InfiniBand or RoCE port."""

    port: PortReading
    facts: Facts

    @property
    def device(self) -> str:
        return f"{self.port.device}/{self.port.port}"

    @property
    def accepted(self) -> bool:
        """It was in use, and is down for good, as a person has accepted."""
        known = self.facts.known_ports.get(self.device)
        return known is not None and known.expected is False

    @property
    def wired(self) -> bool:
        """Whether it was ever in use here, as far as anybody can tell, and should be now."""
        known = self.facts.known_ports.get(self.device)
        if known is not None and known.expected is not None:
            return known.expected
        return self.port.used

    @property
    def fastest(self) -> float | None:
        """The speed that it had before, as far back as anybody remembers, unless a person has accepted less."""
        known = self.facts.known_ports.get(self.device)
        return None if known is None else known.speed

    @property
    def alike(self) -> tuple[float, ...]:
        """Speeds of the other ports of the same kind that are up."""
        kind = (self.port.board, self.port.link_layer)
        others = (one for one in self.facts.ports if one is not self.port and (one.board, one.link_layer) == kind)
        return tuple(speed for one in others if (speed := one.link.port_speed_bytes_per_second) is not None)
