"""What a check looks back on: the series of a device within a window, and its counters that grew. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpumon.health.alerts.expression import Reading
from gpumon.health.alerts.history import History, Window
from gpumon.health.alerts.over_time import average
from gpumon.health.verdict import NODE
from gpumon.model.reading import Labels


class Past(NamedTuple):
    """Series of one metric over the last so many seconds."""

    name: str
    """The whole name of the metric; its details are not remembered."""
    seconds: float


class Series(NamedTuple):
    """One series of a device within a window."""

    labels: Mapping[str, str]
    window: Window

    @property
    def gain(self) -> float:
        """What a counter of ours gained: it never falls while the agent lives."""
        return self.window.values[-1] - self.window.values[0]

    @property
    def mean(self) -> float:
        return average(self.window)

    @property
    def changed_at(self) -> float:
        """When it was first seen with its last value, on the clock of Now.at."""
        return self.window.changed_at

    @property
    def covered(self) -> float:
        """Seconds between its first point and its last."""
        return self.window.last_at - self.window.first_at


class Growth(NamedTuple):
    """A counter of a device that grew within a window."""

    labels: Mapping[str, str]
    steps: tuple[tuple[float, float], ...]
    """Boot clock when it was seen to have grown, and by how much."""

    @property
    def gain(self) -> float:
        return sum(gain for _, gain in self.steps)

    @property
    def last_at(self) -> float:
        return self.steps[-1][0]


def grouped(history: History, past: Past, seconds: float, at: float) -> Mapping[str, tuple[Series, ...]]:
    """Every series of the last so many seconds, by device. `at`: now, on the boot clock."""
    _remembered(history, past)
    found: dict[str, list[Series]] = {}
    for labels, window in history.window(Reading(past.name), seconds, at):
        found.setdefault(_device(labels), []).append(Series(dict(labels), window))
    return {device: tuple(series) for device, series in found.items()}


def growing(history: History, past: Past, at: float) -> Mapping[str, tuple[Growth, ...]]:
    """The counters that grew, by device. `at`: now, on the boot clock."""
    _remembered(history, past)
    found: dict[str, list[Growth]] = {}
    for labels, steps in history.growth(Reading(past.name), past.seconds, at):
        found.setdefault(_device(labels), []).append(Growth(dict(labels), steps))
    return {device: tuple(grown) for device, grown in found.items()}


def _remembered(history: History, past: Past) -> None:
    if history.windows.get(past.name, 0.0) < past.seconds:
        raise LookupError(f"{past} is in no row of the table of checks: nothing is remembered of it")


def _device(labels: Labels) -> str:
    named = dict(labels)
    if "uuid" in named:
        return named["uuid"]
    return f"{named['device']}/{named['port']}" if "port" in named else NODE
