"""TABLE: jobs that pause or wait and do not hang. A verdict about them is false."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpumon_sim.faults.jobs import ODD, OTHERS, SOON, SPIN, Phases, eight, ranks

from benchmarks.truth.rows import Disturbance
from gpumon.health.check_row import HOUR

_END = 24 * HOUR
_READ = 5e7
"""Bytes per second that a data loader reads."""


def _work(seconds: float, **phase: Any) -> Mapping[str, Any]:
    return {"do": "work", "seconds": seconds, **phase}


def _idle(seconds: float, process: str = "S", **phase: Any) -> Mapping[str, Any]:
    return {"do": "idle", "seconds": seconds, "process": process, **phase}


def _alike(name: str, *phases: Mapping[str, Any]) -> Disturbance:
    """Return a job whose ranks all do the same, again and again."""
    job = ranks(list(phases), end=_END, repeat=True)
    return Disturbance(name=name, before={"jobs": [job]}, settings=SOON, on=lambda profile: not profile.mig)


def _waiting(name: str, odd: Phases, others: Phases) -> Disturbance:
    """Return a job in which the other ranks wait for one of them in a collective."""
    jobs = [ranks(odd, gpus=ODD, end=_END, repeat=True), ranks(others, gpus=OTHERS, end=_END, repeat=True)]
    return Disturbance(name=name, before={"jobs": jobs}, settings=SOON, on=eight)


def _waits(seconds: float) -> Phases:
    return [_work(300), {**SPIN, "seconds": seconds}]


DISTURBANCES = (
    _alike("a job waits for its data", _work(120), _idle(200, "D", read_bytes=_READ), _work(40), _idle(30)),
    _alike("a job saves a checkpoint on all ranks", _work(600), _idle(300, "D", read_bytes=_READ)),
    _alike("a job evaluates its model", _work(300), _work(300, load=0.2)),
    _alike("inference with bursts", _work(20), _idle(180), _work(45, load=0.3), _idle(420), _work(5), _idle(60)),
    _alike("a job is suspended as a whole", _work(300), _idle(300, "T")),
    _waiting("a rank writes a checkpoint, and the others wait", [_work(300), _idle(240, "D")], _waits(240)),
    _waiting("a rank packs a checkpoint, and the others wait", [_work(300), _idle(240, "R")], _waits(240)),
    _waiting("a rank compiles, and the others wait", [_work(300), _idle(360, "R")], _waits(360)),
    _waiting("a rank evaluates, and the others wait", [_work(300), _work(400, load=0.4)], _waits(400)),
    _waiting(
        "a job ends rank by rank, and another one begins",
        [_work(600), {"do": "gone", "seconds": 210}],
        [_work(600), _idle(30), {"do": "gone", "seconds": 180}],
    ),
)
