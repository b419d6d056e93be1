"""GpuCase and PortCase, the arguments of checks of GPUs and ports: one device, with the facts of the evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from gpumon.health.facts import Facts
from gpumon.health.sample_windows import CounterGrowth, SampleWindow, WindowSeries, with_labels
from gpumon.model.error_event import ErrorEvent
from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.records import PortRecord
from gpumon.model.snapshot import PortReading


class _DeviceCase(ABC):
    """One device that a check evaluates: base class of GpuCase and PortCase."""

    __slots__ = ()
    facts: Facts

    @property
    @abstractmethod
    def device(self) -> str:
        """Return the device as verdicts name it: the uuid of a GPU, or `device/port` of a port."""

    def series(self, window: SampleWindow, *, since: float | None = None) -> tuple[WindowSeries, ...]:
        """Return the series of this device in the window. `since`: as in Facts.series."""
        return self.facts.series(window, self.device, since=since)

    def growth(self, window: SampleWindow, *, since: float | None = None) -> tuple[CounterGrowth, ...]:
        """Return the counters of this device that increased in the window. `since`: as in Facts.growth."""
        return self.facts.growth(window, self.device, since=since)

    def mean(self, window: SampleWindow, **labels: str) -> float | None:
        """Return the mean of the series with these labels; None if its samples cover too little of the window."""
        series = with_labels(self.series(window), **labels)
        return None if series is None or not series.covers(window) else series.mean

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
        """Yield the GPU's error events (Xids) since this check's verdict on it was last cleared, newest last.

        Events during a release of the GPU are left out, because a reset logs errors. Events during maintenance are
        included.
        """
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

    @property
    def record(self) -> PortRecord | None:
        return self.facts.known_ports.get(self.device)

    @property
    def similar_port_speeds(self) -> tuple[float, ...]:
        """Return the speeds of the host's other ports with the same board and link layer."""
        kind = (self.port.board, self.port.link_layer)
        others = (port for port in self.facts.ports if port is not self.port and (port.board, port.link_layer) == kind)
        return tuple(speed for port in others if (speed := port.link.port_speed_bytes_per_second) is not None)


@dataclass(frozen=True, slots=True)
class DeviceCases:
    """The GPUs and ports that the checks evaluate at one time, with the facts of that evaluation."""

    facts: Facts
    gpus: tuple[GpuCase, ...]
    ports: tuple[PortCase, ...]


def device_cases(facts: Facts) -> DeviceCases:
    """Return a GpuCase for each GPU and a PortCase for each port in the facts."""
    return DeviceCases(
        facts,
        tuple(GpuCase(state, facts) for state in facts.gpus),
        tuple(PortCase(port, facts) for port in facts.ports),
    )
