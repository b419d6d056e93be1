"""Injects one fault or disturbance into one node, and returns the verdicts of the agent."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from gpumon_sim.faults.row import FaultRow, ScenarioStep, at_time
from gpumon_sim.profiles import PROFILES

from benchmarks.truth.rows import ACTS, Disturbance
from benchmarks.truth.world import World
from gpumon.health.table import BY_NAME
from gpumon.health.verdict import JOB, NODE, Key, Verdict, VerdictChange

HEALTHY_SECONDS = 75.0
"""Time before the fault."""
STEP_SECONDS = 5.0
AFTERWARDS = 90.0
"""Seconds after the verdict in which further verdicts are collected."""
ALLOWED = 60.0
"""Seconds allowed beyond the delay of the check, for polls, evaluation and the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOutcome:
    """Result of one fault on one node."""

    fault: str
    profile: str
    seconds: float | None = None
    """Time to the expected verdict; None: never raised."""
    level: str = ""
    action: str = ""
    inhibited_by: str = ""
    """Check whose verdict inhibits it."""
    elsewhere: tuple[str, ...] = ()
    """Other devices with a verdict of the same check."""
    others: tuple[str, ...] = ()
    """Other checks with verdicts that are not inhibited."""
    folded: tuple[str, ...] = ()
    """Checks with inhibited verdicts."""


def target(profile: str) -> int:
    """Return the index of the faulty GPU."""
    return min(1, len(PROFILES[profile].bus_ids) - 1)


def scenario(before: Mapping[str, Any], placed: Sequence[tuple[int, ScenarioStep]], now: float) -> str:
    """Return the scenario file for steps that are active at the same time, each on its GPU."""
    text: dict[str, Any] = dict(before)
    gpus: dict[int, dict[str, Any]] = {}
    for gpu, step in placed:
        text |= step.node
        for key, value in step.gpu.items():
            gpus.setdefault(gpu, {})[key] = _both(gpus[gpu].get(key), value) if gpu in gpus else value
    merged = {**gpus, **text.pop("gpus", {})}
    return str(yaml.safe_dump(at_time(text | ({"gpus": merged} if merged else {}), now)))


def _both(first: Any, second: Any) -> Any:
    """Merge the values of two faults with the same key."""
    if isinstance(first, list) and isinstance(second, list):
        return first + second
    return {**first, **second} if isinstance(first, dict) and isinstance(second, dict) else second


def before(faults: Sequence[FaultRow]) -> dict[str, Any]:
    """Return the scenario of the node for all faults: idle if one of them needs an idle node."""
    merged = {key: value for fault in faults for key, value in fault.before.items()}
    return {key: value for key, value in merged.items() if key != "busy" or "idle" not in merged}


class Trial:
    """One or two faults, each on its GPU, in one world."""

    def __init__(self, world: World, faults: Sequence[tuple[int, FaultRow]]) -> None:
        self._world = world
        self._faults = faults
        self._before = before([fault for _, fault in faults])
        self._began = 0.0
        self._in_force: dict[int, ScenarioStep] = {}
        self.raised_after: dict[Key, float] = {}
        """Seconds from the start of the fault to the verdict."""
        self.last: dict[Key, Verdict] = {}

        self.end = max(fault.steps[-1].at + deadline(fault) for _, fault in faults)
        """Seconds from the start of the faults in which all verdicts must be raised."""

    def begin(self) -> None:
        """Run the healthy node, then schedule the steps of the faults."""
        self._world.advance(HEALTHY_SECONDS)
        self.keys = [(fault.check, device(self._world, fault, gpu)) for gpu, fault in self._faults]
        self._began = self._world.clock
        self._keys_before = {verdict.key for verdict in self._world.verdicts}
        for number, (gpu, fault) in enumerate(self._faults):
            for step in fault.steps:
                self._world.after(step.at, partial(self._take, number, gpu, step))

    def _take(self, number: int, gpu: int, step: ScenarioStep) -> None:
        """Apply a step of one fault; the step of the other fault remains active."""
        world = self._world
        self._in_force[number] = step
        placed = [(self._faults[n][0], active) for n, active in self._in_force.items()]
        world.edit(scenario(self._before, placed, world.now))
        bus_id = PROFILES[world.profile].bus_ids[gpu]
        for line in step.log:
            world.log_kernel_line(line.replace("{bus}", bus_id[4:-2].lower()))
        if step.act is not None:
            ACTS[step.act](world)
        if step.settings:
            world.restart(**step.settings)

    def advance(self, seconds: float) -> None:
        self._world.advance(seconds)
        for verdict in self._world.verdicts:
            if verdict.key not in self._keys_before:
                self.raised_after.setdefault(verdict.key, self._world.clock - self._began)
                self.last[verdict.key] = verdict

    def others(self, world: World, keys: Sequence[Key]) -> tuple[str, ...]:
        """Return the other verdicts that are not inhibited, as text."""
        return tuple(
            _device_text(world, verdict)
            for verdict in self.last.values()
            if verdict.key not in keys and verdict.inhibited_by is None
        )

    @property
    def seconds_passed(self) -> float:
        return self._world.clock - self._began

    @property
    def complete(self) -> bool:
        """Return whether the verdict of each fault was raised."""
        return all(key in self.raised_after for key in self.keys)

    def await_verdicts(self) -> None:
        """Let time pass until the verdict of each fault is raised, or is too late."""
        while self.seconds_passed < self.end and not self.complete:
            self.advance(STEP_SECONDS)


def device(world: World, fault: FaultRow, gpu: int) -> str:
    """Return the device as verdicts name it."""
    if fault.where == "gpu":
        bus_id = PROFILES[world.profile].bus_ids[gpu]
        return next(
            (reading.uuid for reading in world.report.gpus if reading.bus_id == bus_id), f"pci-{bus_id.lower()}"
        )
    if fault.where.startswith(JOB):
        return fault.where
    return NODE if fault.where == "node" else f"{fault.where}/1"


def deadline(fault: FaultRow) -> float:
    """Return the seconds after the last step in which the verdict must be raised."""
    return ALLOWED + BY_NAME[fault.check].after if fault.within is None else fault.within


def measure(fault: FaultRow, profile: str, **settings: Mapping[str, Any]) -> FaultOutcome:
    """Measure one fault on one node."""
    gpu = target(profile)
    with world_of(profile, [fault], settings) as world:
        trial = Trial(world, [(gpu, fault)])
        trial.begin()
        trial.await_verdicts()
        if trial.complete:
            trial.advance(max(0.0, fault.steps[-1].at - trial.seconds_passed) + AFTERWARDS)
        return _outcome(fault, profile, trial, world)


def _outcome(fault: FaultRow, profile: str, trial: Trial, world: World) -> FaultOutcome:
    [key] = trial.keys
    own = trial.last.get(key)
    cause = None if own is None else own.inhibited_by
    others = [verdict for verdict in trial.last.values() if verdict.key not in {key, cause}]
    return FaultOutcome(
        fault=fault.name,
        profile=profile,
        seconds=trial.raised_after.get(key),
        level="" if own is None else own.level.word,
        action="" if own is None else own.action.value,
        inhibited_by="" if own is None or own.inhibited_by is None else own.inhibited_by[0],
        elsewhere=tuple(
            _device_name(world, other) for other in others if other.check == fault.check and other.inhibited_by is None
        ),
        others=trial.others(world, [key, cause or key, *(other.key for other in others if other.check == fault.check)]),
        folded=tuple(_device_text(world, other) for other in others if other.inhibited_by is not None),
    )


def _device_text(world: World, verdict: Verdict) -> str:
    place = _device_name(world, verdict)
    return f"{verdict.check} ({place})" if place else verdict.check


def _device_name(world: World, verdict: Verdict) -> str:
    """Return a readable name of the device that is the same in each run."""
    gpu = world.report.gpu(verdict.device) if verdict.device else None
    return f"GPU {gpu.index}" if gpu is not None else verdict.device or "node"


@contextlib.contextmanager
def _world(profile: str, before: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[World]:
    """Run a world in a temporary folder."""
    # The thread of an agent that was killed may still be writing its health file.
    with (
        tempfile.TemporaryDirectory(prefix="gpumon-truth-", ignore_cleanup_errors=True) as folder,
        World(profile, Path(folder), yaml.safe_dump(dict(before)), settings=settings) as world,
    ):
        yield world


def world_of(
    profile: str, faults: Sequence[FaultRow], settings: Mapping[str, Any] | None = None
) -> contextlib.AbstractContextManager[World]:
    """Return a world for these faults."""
    own: dict[str, Any] = {section: values for fault in faults for section, values in fault.settings.items()}
    return _world(profile, before(faults), {**own, **(settings or {})})


# Disturbances


@dataclass(frozen=True, slots=True, kw_only=True)
class CalmOutcome:
    """Result of one disturbance on one node."""

    name: str
    profile: str
    hours: float
    verdicts_raised: tuple[tuple[str, str], ...] = ()
    """Check and level of each verdict."""


def measure_disturbance(disturbance: Disturbance, profile: str, hours: float) -> CalmOutcome:
    """Repeat a disturbance for this time, and collect the verdicts."""
    with _world(profile, disturbance.before, disturbance.settings) as world:
        world.advance(2 * HEALTHY_SECONDS)
        end = world.clock + 3600.0 * hours
        raised: dict[tuple[str, str, float], str] = {}
        while world.clock < end:
            if disturbance.act is not None:
                disturbance.act(world)
            world.advance(min(disturbance.every, end - world.clock))
            for transition in world.transitions:
                if transition.change is VerdictChange.RAISED:
                    raised[(*transition.verdict.key, transition.time.wall)] = transition.verdict.level.word
        verdicts = tuple(sorted((check, level) for (check, _, _), level in raised.items()))
        return CalmOutcome(name=disturbance.name, profile=profile, hours=hours, verdicts_raised=verdicts)
