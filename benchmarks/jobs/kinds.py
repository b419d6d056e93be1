"""TABLES: what the ranks of jobs do. Jobs that pause or wait and do not hang, and jobs that hang."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

Phase = Mapping[str, Any]
Cycle = tuple[list[Phase], list[Phase]]
"""Phases of the first rank, and those of the other ranks, which take as long."""
READ = 5e7
"""Bytes per second of a rank that reads or writes files."""
MINUTE = 60.0


def work(seconds: float, **phase: Any) -> Phase:
    return {"do": "work", "seconds": seconds, **phase}


def idle(seconds: float, process: str = "S", **phase: Any) -> Phase:
    return {"do": "idle", "seconds": seconds, "process": process, **phase}


def spin(seconds: float) -> Phase:
    return {"do": "spin", "seconds": seconds}


def gone(seconds: float) -> Phase:
    return {"do": "gone", "seconds": seconds}


def _alike(*phases: Phase) -> Cycle:
    return list(phases), list(phases)


def _works(chance: Random) -> Phase:
    return work(chance.uniform(10, 40) * MINUTE, load=chance.uniform(0.5, 1.0))


def _data(chance: Random) -> Cycle:
    return _alike(work(chance.uniform(10, 90)), idle(chance.uniform(5, 240), chance.choice("DS"), read_bytes=READ))


def _checkpoint(chance: Random) -> Cycle:
    return _alike(_works(chance), idle(chance.uniform(1, 8) * MINUTE, chance.choice("DRS")))


def _waited_for(chance: Random, minutes: float, phases: list[Callable[[float], Phase]]) -> Cycle:
    """Return a cycle in which the first rank does one of these things, and the others wait in a collective."""
    works, seconds = _works(chance), chance.uniform(1, minutes) * MINUTE
    return [works, chance.choice(phases)(seconds)], [works, spin(seconds)]


def _saves(chance: Random) -> Cycle:
    return _waited_for(
        chance,
        6,
        [
            lambda seconds: idle(seconds, "D"),
            lambda seconds: idle(seconds, "R"),
            lambda seconds: idle(seconds, "S", cpu=0.6),
            lambda seconds: idle(seconds, "S", read_bytes=READ),
        ],
    )


def _inference(chance: Random) -> Cycle:
    burst = work(chance.uniform(5, 60), load=chance.uniform(0.1, 0.9))
    return _alike(burst, idle(min(3600.0, 5 + chance.expovariate(1 / 180))))


def _ends(chance: Random) -> Cycle:
    works, tail, pause = _works(chance), chance.uniform(5, 170), chance.uniform(1, 5) * MINUTE
    return [works, gone(tail + pause)], [works, idle(tail), gone(pause)]


def _saves_last(chance: Random) -> Cycle:
    works, tail, pause = _works(chance), chance.uniform(1, 8) * MINUTE, chance.uniform(1, 5) * MINUTE
    return [works, idle(tail, chance.choice("DR")), gone(pause)], [works, gone(tail + pause)]


CALM: Mapping[str, Callable[[Random], Cycle]] = {
    "steps without a pause": lambda chance: _alike(_works(chance)),
    "waits for its data": _data,
    "a checkpoint on all ranks": _checkpoint,
    "a checkpoint on one rank, the others wait": _saves,
    "a rank compiles, the others wait": lambda chance: _waited_for(chance, 8, [lambda each: idle(each, "R")]),
    "evaluation": lambda chance: _alike(_works(chance), work(chance.uniform(1, 15) * MINUTE, load=0.15)),
    "evaluation on one rank, the others wait": lambda chance: _waited_for(
        chance, 15, [lambda seconds: work(seconds, load=0.4)]
    ),
    "inference with bursts": _inference,
    "suspended as a whole": lambda chance: _alike(_works(chance), idle(chance.uniform(1, 60) * MINUTE, "T")),
    "ends rank by rank": _ends,
    "one rank saves the model after the others have ended": _saves_last,
    "one rank saves over the network without CPU time, the others wait": lambda chance: _waited_for(chance, 6, [idle]),
    "all ranks wait for another node": lambda chance: _alike(_works(chance), spin(chance.uniform(1, 8) * MINUTE)),
}
STEADY, *WAITING = tuple(CALM)[:7]
"""Kinds of jobs that may hang."""
HANGS: Mapping[str, tuple[Phase, Phase]] = {
    "a collective hangs": ({"do": "spin"}, {"do": "spin"}),
    "a rank has died": ({"do": "gone"}, {"do": "spin"}),
    "a rank is stopped (T)": ({"do": "idle", "process": "T"}, {"do": "spin"}),
    "a rank waits for a lock": ({"do": "idle"}, {"do": "spin"}),
    "a rank is stopped (T), the others wait without a kernel": ({"do": "idle", "process": "T"}, {"do": "idle"}),
    "a rank loops on its CPU": ({"do": "idle", "process": "R"}, {"do": "spin"}),
}
"""What the first rank and the others do from the hang on."""


def script(kind: str, chance: Random, seconds: float) -> Cycle:
    """Return the phases of a job of this kind, for at least this time."""
    first: list[Phase] = []
    others: list[Phase] = []
    for one, other in _cycles(kind, chance):
        first += one
        others += other
        if length(first) >= seconds:
            return first, others
    raise AssertionError("the cycles never end")


def _cycles(kind: str, chance: Random) -> Iterator[Cycle]:
    while True:
        yield CALM[kind](chance)


def length(phases: list[Phase]) -> float:
    return float(sum(phase["seconds"] for phase in phases))
