"""Computes a simulated GPU's power, energy and temperature over time from its load.

The load is piecewise constant. Power follows the load with a time constant of 1 second (LAG), temperature follows power
with a time constant of 25 seconds (INERTIA). In a phase with `dips`, power falls and rises with each step of the job.
The formulas are closed forms, so every process computes the same values for the same time. Times are seconds since the
simulation began.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

LAG = 1.0
INERTIA = 25.0
SPIN_LOAD = 0.18
"""Load that draws the power of a kernel that waits for a peer. Source: 240 to 280 W of 1,000 on GB200 (marin#7344)."""
DIP, STEP = 0.15, 6.7
"""Depth of a dip as a share of the power above idle, and seconds of a step."""


class Job(NamedTuple):
    """A job that runs on a GPU, with one process or, if MIG is enabled, one process on each MIG device."""

    number: int
    memory: float
    """Share of the GPU's memory, 0 to 1."""
    pid: int | None = None
    """Id of its process on the GPU; None for one that is derived from `number`."""


class LoadPhase(NamedTuple):
    """A period of a workload, during which the load is constant and the jobs do not change."""

    seconds: float
    load: float
    """Load from 0 to 1."""
    jobs: tuple[Job, ...] = ()
    spins: bool = False
    """True if a kernel waits for a peer: the GPU is busy, but moves no data."""
    dips: bool = False
    """True if the power falls and rises with each step of the job."""

    @property
    def drawn(self) -> float:
        """Return the load, from 0 to 1, that draws the power of this phase."""
        return min(1.0, self.load + (SPIN_LOAD if self.spins else 0.0))


@dataclass(frozen=True, slots=True)
class Workload:
    """A GPU's load over time: `lead` seconds without load, then the phases, once or repeatedly.

    After phases that are not repeated, the GPU is idle.
    """

    lead: float
    phases: tuple[LoadPhase, ...] = ()
    repeats: bool = False
    """True if the phases are repeated. A cycle (all phases once) must then take much longer than INERTIA (25 s),
    because every cycle but the first is assumed to start at the same temperature.
    """
    same_jobs: bool = False
    """True if all cycles have the same processes; False if each cycle starts new processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The physical parameters of one GPU: its power (W), and its temperature (Celsius) as a function of power.

    `idle` is the power without load, `full` the power under full load without a limit, `limit` the power limit. `cool`
    is the temperature without load, `per_watt` the rise in degrees for each additional watt.
    """

    idle: float
    full: float
    limit: float
    cool: float
    per_watt: float


class Point(NamedTuple):
    """Power (W), energy (J) and temperature (Celsius) of a GPU at one moment.

    `load_seconds` is the integral of the load, `capped_seconds` the time at the power limit, `spin_seconds` that with a
    kernel that waits for a peer. They and the energy are totals since the simulation began or, inside Course, since the
    cycle of the workload began.
    """

    power: float
    energy: float
    temperature: float
    load_seconds: float
    capped_seconds: float
    spin_seconds: float = 0.0


class Moment(NamedTuple):
    """Power, energy and temperature of a GPU at one moment, with the active phase of the workload."""

    point: Point
    phase: LoadPhase
    cycle: int
    """Number of the workload's cycle; always 0 if the workload has `same_jobs`. Jobs in cycles with different numbers
    have different processes.
    """
    capped: bool
    """True while the power limit restricts the load."""


def is_power_capped(body: Body, load: float) -> bool:
    """Return True if the power limit restricts this load."""
    return body.idle + (body.full - body.idle) * load > body.limit


def advance(body: Body, phase: LoadPhase, start: Point, seconds: float) -> Point:
    """Return power, energy and temperature `seconds` after `start`, the beginning of this phase."""
    target = min(body.idle + (body.full - body.idle) * phase.drawn, body.limit)
    depth = DIP * (target - body.idle) / 2 if phase.dips else 0.0
    angle = 2 * math.pi * (seconds % STEP) / STEP
    gap = start.power - target
    fade = math.exp(-seconds / LAG)
    level = body.cool + body.per_watt * (target - body.idle)
    share = body.per_watt * gap / (1 - INERTIA / LAG)
    heat = (start.temperature - level - share) * math.exp(-seconds / INERTIA)
    return Point(
        power=target + gap * fade - depth * (1 - math.cos(angle)),
        energy=start.energy
        + (target - depth) * seconds
        + depth * STEP / (2 * math.pi) * math.sin(angle)
        - gap * LAG * math.expm1(-seconds / LAG),
        temperature=level + share * fade + heat,
        load_seconds=start.load_seconds + phase.load * seconds,
        capped_seconds=start.capped_seconds + (seconds if is_power_capped(body, phase.drawn) else 0.0),
        spin_seconds=start.spin_seconds + (seconds if phase.spins else 0.0),
    )


IDLE = LoadPhase(math.inf, 0.0)


class Course:
    """Power, energy and temperature of one GPU over time, under one workload."""

    def __init__(self, body: Body, workload: Workload) -> None:
        self._body = body
        self._workload = workload
        self._cold = Point(body.idle, 0.0, body.cool, 0.0, 0.0)
        self._starts = list(accumulate((phase.seconds for phase in workload.phases), initial=0.0))
        self._first = self._cycle(self._cold)
        self._later = self._cycle(self._reset_totals(self._first[-1])) if workload.repeats else []

    def at(self, time: float) -> Moment:
        """Return the GPU's power, energy, temperature and phase `time` seconds after the simulation began."""
        lead = self._workload.lead
        if time < lead or not self._workload.phases:
            return Moment(advance(self._body, IDLE, self._cold, max(time, 0.0)), IDLE, 0, capped=False)
        length = self._starts[-1]
        cycle, into = divmod(time - lead, length) if self._workload.repeats else (0.0, time - lead)
        points = self._later if cycle else self._first
        number = bisect_right(self._starts, into) - 1
        phase = self._workload.phases[number] if number < len(self._workload.phases) else IDLE
        point = advance(self._body, phase, points[number], into - self._starts[number])
        numbering = 0 if self._workload.same_jobs else int(cycle)
        return Moment(
            self._add_finished_cycles(point, int(cycle)), phase, numbering, is_power_capped(self._body, phase.drawn)
        )

    def _cycle(self, start: Point) -> list[Point]:
        """Return the point at the beginning of each phase of a cycle, then the point at the end of the cycle."""
        points = [start]
        for phase in self._workload.phases:
            points.append(advance(self._body, phase, points[-1], phase.seconds))
        return points

    def _add_finished_cycles(self, point: Point, cycle: int) -> Point:
        """Return `point` with the totals of the lead time and of the finished cycles added to its totals."""
        before = [self._workload.lead * self._body.idle, 0.0, 0.0, 0.0]
        if cycle:
            for n, (whole, again) in enumerate(
                zip(_integrals(self._first[-1]), _integrals(self._later[-1]), strict=True)
            ):
                before[n] += whole + again * (cycle - 1)
        energy, load, cap, spin = (a + b for a, b in zip(before, _integrals(point), strict=True))
        return point._replace(energy=energy, load_seconds=load, capped_seconds=cap, spin_seconds=spin)

    @staticmethod
    def _reset_totals(point: Point) -> Point:
        return point._replace(energy=0.0, load_seconds=0.0, capped_seconds=0.0, spin_seconds=0.0)


def _integrals(point: Point) -> tuple[float, float, float, float]:
    return point.energy, point.load_seconds, point.capped_seconds, point.spin_seconds
