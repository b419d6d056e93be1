"""Validators of single entries of a scenario file: an Xid, a job, a MIG instance, a field, a driver version."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gpumon_sim import shapes
from gpumon_sim.arrivals import ScenarioXid
from gpumon_sim.field_values import NAMES, TYPES
from gpumon_sim.job_processes import STATES
from gpumon_sim.mig import RequestedInstance
from gpumon_sim.workload import GONE, IDLE_PHASE, SPIN, WORK, JobPhase, ScenarioJob

_TIME = shapes.number(0, 1e12, "seconds after the epoch")
_INSTANCE = shapes.whole(0, 255, "number of an instance")
_MAX_PHASES = 100_000
"""Maximum number of phases of a job, because all are computed in advance."""


def _value_or_mapping(
    key: str, plain: shapes.Shape, make: Callable[..., Any], **optional: shapes.Shape
) -> shapes.Shape:
    """Return a validator of a value that `plain` accepts, or of a mapping with this value as `key` and optional keys.

    The validator passes the values to `make` and returns its result.
    """
    parts = shapes.fields({key: plain, **optional})

    def shape(value: Any, path: shapes.Path) -> Any:
        if not isinstance(value, dict):
            return make(plain(value, path))
        entry = parts(value, path)
        if key not in entry:
            raise shapes.ShapeError(path, f"needs a key {key!r}")
        return make(**entry)

    return shape


xid = _value_or_mapping(
    "xid",
    shapes.whole(1, 2**31, "an Xid"),
    ScenarioXid,
    at=_TIME,
    until=_TIME,
    rate=shapes.number(0, 1e5, "Xids a second"),
    gpu_instance=_INSTANCE,
    compute_instance=_INSTANCE,
)


def _cgroup(value: Any, path: shapes.Path) -> str:
    if not isinstance(value, str) or not value.startswith("/"):
        raise shapes.ShapeError(path, "must be the path of a cgroup, such as /system.slice/train.service")
    return value


_CPU = {"R": 1.0, "S": 0.02}
"""CPU time per second of a process by its state; 0 in other states."""
_PHASE = shapes.fields(
    {
        "do": shapes.one_of(WORK, IDLE_PHASE, SPIN, GONE),
        "seconds": shapes.number(0.1, 1e12, "s"),
        "load": shapes.number(0, 1),
        "process": shapes.one_of(*STATES),
        "cpu": shapes.number(0, 1024, "seconds of CPU time per second"),
        "read_bytes": shapes.number(0, 1e12, "bytes a second"),
    }
)


def _phase(value: Any, path: shapes.Path) -> JobPhase:
    entry = _PHASE(value, path)
    do = entry.get("do")
    if do is None:
        raise shapes.ShapeError(path, "needs a key 'do'")
    if "load" in entry and do != WORK:
        raise shapes.ShapeError((*path, "load"), f"only {WORK!r} has a load")
    if do == GONE and entry.keys() & {"process", "cpu"}:
        raise shapes.ShapeError(path, f"{GONE!r} has no process, and uses no CPU time")
    process = entry.setdefault("process", "S" if do == IDLE_PHASE else "R")
    entry.setdefault("cpu", 0.0 if do == GONE else _CPU.get(process, 0.0))
    return JobPhase(**entry, dips=do == WORK)


_RUN = shapes.fields(
    {
        "start": _TIME,
        "end": _TIME,
        "load": shapes.number(0, 1),
        "memory": shapes.number(0, 1, "share of the GPU's memory"),
        "gpus": shapes.listing(shapes.whole(0, 1023, "index")),
        "cgroup": _cgroup,
        "pids": shapes.listing(shapes.whole(1, 2**22, "process id")),
        "phases": shapes.listing(_phase),
        "repeat": shapes.flag,
    }
)


def job(value: Any, path: shapes.Path) -> ScenarioJob:
    run = ScenarioJob(**_RUN(value, path))
    if run.end <= run.start:
        raise shapes.ShapeError(path, "ends before it starts")
    _check_phases(run, path)
    return run


def _check_phases(run: ScenarioJob, path: shapes.Path) -> None:
    """Raise ShapeError if the phases of a job have no length, have no end, or are too many."""
    if not run.phases:
        raise shapes.ShapeError((*path, "phases"), "needs a phase")
    for n, phase in enumerate(run.phases if run.repeat else run.phases[:-1]):
        if phase.seconds == math.inf:
            raise shapes.ShapeError((*path, "phases", n), "needs a key 'seconds'; only the last phase can do without")
    length = sum(phase.seconds for phase in run.phases)
    if run.repeat and (run.end - run.start) / length * len(run.phases) > _MAX_PHASES:
        raise shapes.ShapeError(path, f"has more than {_MAX_PHASES:,} phases: `repeat` needs an `end`")


def _profile(value: Any, path: shapes.Path) -> str:
    if not isinstance(value, str):
        raise shapes.ShapeError(path, "must be the name of a MIG profile, such as 3g.40gb")
    return value


instance = _value_or_mapping(
    "profile", _profile, RequestedInstance, compute=shapes.listing(shapes.whole(1, 7, "compute slices"))
)


def field(value: Any, path: shapes.Path) -> str:
    """Validate the name of an NVML field. Raise ShapeError if the simulated driver has no such field."""
    if value not in NAMES:
        raise shapes.ShapeError(path, f"unknown field {value!r}; valid fields: " + ", ".join(sorted(NAMES)))
    return str(value)


def field_type(value: Any, path: shapes.Path) -> int:
    return TYPES[shapes.one_of(*TYPES)(value, path)]


def driver_version(value: Any, path: shapes.Path) -> str:
    if not isinstance(value, str) or not all(part.isdigit() for part in value.split(".")):
        raise shapes.ShapeError(path, "must be a driver version in quotes, such as '580.65.06'")
    return value
