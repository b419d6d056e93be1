"""Facts: the input of a check, made of the report at one moment and its sample windows. Frozen."""

from __future__ import annotations

from collections.abc import Mapping
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
)
from gpumon.health.verdict import NODE, Clearance, Key, Verdict, VerdictChange, VerdictTransition
from gpumon.model.error_event import XID, ErrorEvent
from gpumon.model.gpu_state import GpuState
from gpumon.model.node import Driver, Node
from gpumon.model.now import Now
from gpumon.model.port_record import PortRecord
from gpumon.model.snapshot import PortReading, StuckProcess
from gpumon.model.time_window import TimeWindow, WindowKind, Windows, last_to_end
from gpumon.probe.core.state import ProbeState


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that a check may read."""

    now: Now
    boot_id: str = ""
    node: Node = Node()
    driver: Driver = Driver()
    gpus: tuple[GpuState, ...] = ()
    ports: tuple[PortReading, ...] = ()
    gone_ports: Mapping[str, float] = field(default_factory=dict)
    """Ports of `ports` that are gone while others can be read, with the time in seconds since the epoch."""
    known_ports: Mapping[str, PortRecord] = field(default_factory=dict)
    """Records of `ports` that survive restarts and reboots."""
    ports_listed: bool = False
    """Whether `ports` is complete."""
    events: tuple[ErrorEvent, ...] = ()
    """Newest last. Times are by the wall clock as it is set now."""
    stuck: tuple[StuckProcess, ...] | None = None
    """Processes that hold a GPU and do not return from the kernel; None if they cannot be read."""
    contained: bool | None = None
    """True if NVML lists the processes of the agent's container only; None if unknown."""
    recalled: bool = True
    """Whether the stored state was read."""
    interval: float = 1.0
    """Seconds between fast polls."""
    catalogue: Catalogue = SHIPPED
    history: SampleHistory = field(default_factory=SampleHistory)
    notices: Mapping[str, str] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()
    """PCI addresses of the GPUs that the configuration excludes."""
    bus: Mapping[str, str] | None = None
    """PCI address of each NVIDIA GPU -> bound driver; None until the bus was read."""
    policy: Policy = Policy()
    open: Mapping[Key, Verdict] = field(default_factory=dict)
    """Open verdicts."""
    failing_checks: Mapping[Key, str] = field(default_factory=dict)
    """Exceptions of checks in the previous evaluation."""
    agent_runs: tuple[AgentRun, ...] = ()
    """Runs of the agent, the current one last."""
    expectation: Expectation = Expectation()
    """Expected number of GPUs."""
    gone: frozenset[str] = frozenset()
    """uuids of GPUs, and names of ports, that are no longer expected."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the software that every job uses, if known: driver, nccl."""
    maintenances: Windows = ()
    """Newest last, with those that have ended."""
    probe: ProbeState = ProbeState()
    """State of the all-reduce probe."""
    probe_interval: float = 21600.0
    """Seconds between scheduled runs of the probe."""
    probe_gated: bool = False
    """Whether a gate command asks the scheduler before each run."""
    held: bool = False
    """Whether a hold forbids probes."""
    transitions: tuple[VerdictTransition, ...] = ()
    """Transitions of verdicts, newest last."""
    cleared: Mapping[Key, float] = field(default_factory=dict)
    """Time of the last clearing, by the wall clock as it is set now. Earlier events no longer count."""
    counted_from: float = 0.0
    """Seconds since the epoch before which no sample window begins."""

    def on_this_clock(self, wall: float, at: float, boot_id: str) -> float:
        """Return a time by the wall clock as it is set now. `at`: boot clock of that boot.

        A time before this boot is never after its start, whatever the clock showed then.
        """
        if boot_id == self.boot_id:
            return self.wall(at)
        return min(wall, self.wall(0.0))

    def age(self, transition: VerdictTransition) -> float:
        """Return the seconds since a transition."""
        return self.now.wall - self.on_this_clock(transition.wall, transition.at, transition.boot_id)

    @property
    def uptime(self) -> float:
        """Return the seconds since the host was booted."""
        return self.now.at

    def explain(self, event: ErrorEvent) -> Explanation:
        """Return the explanation of an error event on this host."""
        if event.id not in self._explanations:
            self._explanations[event.id] = self.catalogue.explain(event)
        return self._explanations[event.id]

    @cached_property
    def _explanations(self) -> dict[str, Explanation]:
        return {}

    @cached_property
    def errors(self) -> Mapping[str, tuple[ErrorEvent, ...]]:
        """Return the events by device, newest last, without those from before the agent was installed."""
        named = {state.bus_id: state.uuid for state in self.gpus}
        by_device: dict[str, list[ErrorEvent]] = {}
        for event in self.events:
            if not event.historical:
                unnamed = event.kind == XID and event.uuid is None
                by_device.setdefault(named.get(event.bus_id, event.device) if unnamed else event.device, []).append(
                    event
                )
        return {device: tuple(events) for device, events in by_device.items()}

    @property
    def maintenance(self) -> TimeWindow | None:
        """Return the maintenance in force that ends last: no alert pages, and a reboot is no fault."""
        return last_to_end(self.maintenances, WindowKind.MAINTENANCE)

    def in_maintenance(self, event: ErrorEvent) -> bool:
        """Return whether all of the event occurred in one maintenance, so that it does not count."""
        return self._in_maintenance(event.first_wall, event.last_wall)

    def was_in_maintenance(self, transition: VerdictTransition) -> bool:
        """Return whether a cleared verdict was active only in maintenance.

        The healthy period after the work may end after the maintenance.
        """
        verdict = transition.verdict
        if verdict.episode not in self._maintenance_episodes:
            return False
        last_active = self.on_this_clock(verdict.seen, verdict.seen_at, verdict.boot_id)
        return transition.muted or self._in_maintenance(last_active, last_active)

    def _in_maintenance(self, first: float, last: float) -> bool:
        return any(begin <= first and last <= end for begin, end in self.maintenance_times)

    @cached_property
    def maintenance_times(self) -> tuple[tuple[float, float], ...]:
        """Return start and end of each maintenance, by the wall clock as it is set now."""
        return tuple(
            (
                self.on_this_clock(window.start, window.start_at, window.boot_id),
                self.now.wall
                if window.ended is None
                else self.on_this_clock(window.ended, window.deadline, window.boot_id),
            )
            for window in self.maintenances
        )

    @cached_property
    def _maintenance_episodes(self) -> frozenset[tuple[Key, float]]:
        return frozenset(
            transition.verdict.episode
            for transition in self.transitions
            if transition.change is VerdictChange.RAISED and transition.muted
        )

    @cached_property
    def repairs_by_device(self) -> Mapping[str, tuple[VerdictTransition, ...]]:
        """Return the transitions that a reset or a reboot cleared outside of maintenance, by device."""
        by_device: dict[str, list[VerdictTransition]] = {}
        for transition in self.transitions:
            repaired = transition.change is VerdictChange.CLEARED and transition.cleared_by in {
                Clearance.RESET,
                Clearance.REBOOT,
            }
            if repaired and not self.was_in_maintenance(transition):
                by_device.setdefault(transition.verdict.device, []).append(transition)
        return {device: tuple(transitions) for device, transitions in by_device.items()}

    def limit(self, limit: Limit) -> float | None:
        """Return the threshold in force; None if it is switched off."""
        return self.policy.limit(limit)

    def series(
        self, window: SampleWindow, device: str = NODE, *, since: float | None = None
    ) -> tuple[WindowSeries, ...]:
        """Return every series of the metric that this device has in the window, with its other labels.

        `since`: seconds since the epoch before which nothing counts, if that is later than the start of the window.
        """
        seconds = min(window.seconds, max(0.0, self.now.wall - max(since or 0.0, self.counted_from)))
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
        begin = self.now.at - (self.now.wall - max(since or 0.0, self.counted_from)) + STEP
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
