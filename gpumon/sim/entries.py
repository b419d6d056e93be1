"""Validators of single entries of a scenario file: an Xid, a job, a MIG instance, a field, a driver version."""

from __future__ import annotations

from typing import Any

from gpumon.sim import shapes
from gpumon.sim.arrivals import ScenarioXid
from gpumon.sim.field_values import NAMES, TYPES
from gpumon.sim.mig import RequestedInstance
from gpumon.sim.workload import ScenarioJob

_TIME = shapes.number(0, 1e12, "seconds after the epoch")
_XID = shapes.whole(1, 2**31, "an Xid")
_INSTANCE = shapes.whole(0, 255, "number of an instance")
_XID_PARTS = shapes.fields(
    {
        "xid": _XID,
        "at": _TIME,
        "until": _TIME,
        "rate": shapes.number(0, 1e5, "Xids a second"),
        "gpu_instance": _INSTANCE,
        "compute_instance": _INSTANCE,
    }
)


def xid(value: Any, path: shapes.Path) -> ScenarioXid:
    """Validate an Xid: a number, or a mapping with `xid` and optional keys. Raise ShapeError if it is invalid."""
    return (
        ScenarioXid(**_with("xid", _XID_PARTS, value, path))
        if isinstance(value, dict)
        else ScenarioXid(_XID(value, path))
    )


def _with(key: str, parts: shapes.Shape, value: Any, path: shapes.Path) -> dict[str, Any]:
    """Validate a mapping by `parts` and return it. Raise ShapeError if it is invalid or lacks the key `key`."""
    entry: dict[str, Any] = parts(value, path)
    if key not in entry:
        raise shapes.ShapeError(path, f"needs a key {key!r}")
    return entry


_RUN = shapes.fields(
    {
        "start": _TIME,
        "end": _TIME,
        "load": shapes.number(0, 1),
        "memory": shapes.number(0, 1, "share of the GPU's memory"),
        "gpus": shapes.listing(shapes.whole(0, 1023, "index")),
    }
)


def job(value: Any, path: shapes.Path) -> ScenarioJob:
    run = ScenarioJob(**_RUN(value, path))
    if run.end <= run.start:
        raise shapes.ShapeError(path, "ends before it starts")
    return run


def _profile(value: Any, path: shapes.Path) -> str:
    if not isinstance(value, str):
        raise shapes.ShapeError(path, "must be the name of a MIG profile, such as 3g.40gb")
    return value


_WANTED = shapes.fields({"profile": _profile, "compute": shapes.listing(shapes.whole(1, 7, "compute slices"))})


def instance(value: Any, path: shapes.Path) -> RequestedInstance:
    """Validate a GPU instance: the name of its MIG profile, or a mapping with the keys `profile` and `compute`."""
    return (
        RequestedInstance(**_with("profile", _WANTED, value, path))
        if isinstance(value, dict)
        else RequestedInstance(_profile(value, path))
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
