"""How load becomes power, energy and heat: closed forms, exact at any time and equal in every process.

The load is piecewise constant. Power follows it with a time constant of one second, temperature follows power with one
of 25 seconds. Times are seconds since the epoch of the simulation.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

LAG = 1.0
INERTIA = 25.0


class Job(NamedTuple):
    """A process on the GPU."""

    number: int
    memory: float
    """Share of the GPU's memory, 0 to 1."""


class LoadPhase(NamedTuple):
    """A period of constant load."""

    seconds: float
    load: float
    """0 to 1."""
    jobs: tuple[Job, ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """Idle for `lead` seconds, then the phases, once or repeated; idle after the last."""

    lead: float
    phases: tuple[LoadPhase, ...] = ()
    repeats: bool = False
    """A cycle must be long compared with INERTIA: every cycle but the first starts at the same temperature."""
    same_jobs: bool = False
    """If True, the next cycle continues the jobs of this one instead of starting new processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """Power in watts and temperature in degrees Celsius of one GPU, by load."""

    idle: float
    full: float
    limit: float
    cool: float
    per_watt: float


class Point(NamedTuple):
    """The state of a GPU at one moment. Integrals run from the start."""

    power: float
    energy: float
    temperature: float
    load_seconds: float
    capped_seconds: float


class Moment(NamedTuple):
    """A point, and the phase that led to it."""

    point: Point
    phase: LoadPhase
    cycle: int
    """Number of the cycle: jobs of another cycle are other processes."""
    capped: bool
    """True while the power limit restricts the load."""


def capped(body: Body, load: float) -> bool:
    """Return whether the power limit restricts this load."""
    return body.idle + (body.full - body.idle) * load > body.limit


def advance(body: Body, load: float, start: Point, seconds: float) -> Point:
    """Return power, energy and temperature `seconds` later, under constant load."""
    target = min(body.idle + (body.full - body.idle) * load, body.limit)
    gap = start.power - target
    fade = math.exp(-seconds / LAG)
    level = body.cool + body.per_watt * (target - body.idle)
    share = body.per_watt * gap / (1 - INERTIA / LAG)
    heat = (start.temperature - level - share) * math.exp(-seconds / INERTIA)
    return Point(
        power=target + gap * fade,
        energy=start.energy + target * seconds - gap * LAG * math.expm1(-seconds / LAG),
        temperature=level + share * fade + heat,
        load_seconds=start.load_seconds + load * seconds,
        capped_seconds=start.capped_seconds + (seconds if capped(body, load) else 0.0),
    )


IDLE = LoadPhase(math.inf, 0.0)


class Course:
    """One GPU under one workload."""

    def __init__(self, body: Body, workload: Workload) -> None:
        self._body = body
        self._workload = workload
        self._cold = Point(body.idle, 0.0, body.cool, 0.0, 0.0)
        self._starts = list(accumulate((phase.seconds for phase in workload.phases), initial=0.0))
        self._first = self._cycle(self._cold)
        self._later = self._cycle(self._rewound(self._first[-1]))

    def at(self, time: float) -> Moment:
        """Return the point `time` seconds after the epoch."""
        lead = self._workload.lead
        if time < lead or not self._workload.phases:
            return Moment(advance(self._body, 0.0, self._cold, max(time, 0.0)), IDLE, 0, capped=False)
        length = self._starts[-1]
        cycle, into = divmod(time - lead, length) if self._workload.repeats else (0.0, time - lead)
        points = self._later if cycle else self._first
        number = bisect_right(self._starts, into) - 1
        phase = self._workload.phases[number] if number < len(self._workload.phases) else IDLE
        point = advance(self._body, phase.load, points[number], into - self._starts[number])
        numbering = 0 if self._workload.same_jobs else int(cycle)
        return Moment(self._onwards(point, int(cycle)), phase, numbering, capped(self._body, phase.load))

    def _cycle(self, start: Point) -> list[Point]:
        """Return the points at which the phases start, and the end point."""
        points = [start]
        for phase in self._workload.phases:
            points.append(advance(self._body, phase.load, points[-1], phase.seconds))
        return points

    def _onwards(self, point: Point, cycle: int) -> Point:
        """Add the integrals of the lead time and of finished cycles."""
        before = [self._workload.lead * self._body.idle, 0.0, 0.0]
        if cycle:
            for n, (whole, again) in enumerate(
                zip(_integrals(self._first[-1]), _integrals(self._later[-1]), strict=True)
            ):
                before[n] += whole + again * (cycle - 1)
        energy, load, cap = (a + b for a, b in zip(before, _integrals(point), strict=True))
        return point._replace(energy=energy, load_seconds=load, capped_seconds=cap)

    @staticmethod
    def _rewound(point: Point) -> Point:
        return point._replace(energy=0.0, load_seconds=0.0, capped_seconds=0.0)


def _integrals(point: Point) -> tuple[float, float, float]:
    return point.energy, point.load_seconds, point.capped_seconds
