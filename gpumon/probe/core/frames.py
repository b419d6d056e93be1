"""Fold the frames that a rank sends into its account. A rank is not trusted: it runs third-party code. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpumon.probe.core.plan import Measure, Pairs, Step

STAGES = ("start", "import", "join", "allocate", "warm_up", "measure", "check", "locate", "end")
"""That a rank goes through; allocate to check for each size."""
SETUP_STAGES = STAGES[: STAGES.index("warm_up")]
"""Before the first operation: what fails here says nothing about the links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a rank is."""

    rank: int
    stage: str = "start"
    """One of STAGES; where the run tells it, repeat for all of a size that is measured again."""
    step: int | None = None
    """Number of the step; None before the first and after the last."""
    algorithm: str = ""
    """Where the run tells it."""
    bytes: int | None = None
    ratio: float = 0.0
    """Share of the step that is done; of the run, where the run tells it."""

    def __str__(self) -> str:
        return self.stage if self.bytes is None else f"{self.stage} of {self.bytes} bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """What one rank measured at one size, with all others or with one."""

    seconds: tuple[float, ...]
    """Of each operation, in order."""
    wrong: int
    spoilt: int = 0
    """Of what it gave itself."""
    direct: bool | None = None
    """Whether it reaches the memory of the GPU that it exchanged with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One rank's side of a run."""

    progress: Progress
    versions: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[tuple[int, int], Sized] = field(default_factory=dict)
    """By number of the step, and bytes."""
    pairs: Mapping[tuple[int, int], Sized] = field(default_factory=dict)
    """By number of the step, and the rank exchanged with; what is wrong came from there."""
    stepped: int = 0
    """How many steps it has done."""
    absent: str = ""
    """A module that the interpreter lacks."""
    error: str = ""
    done: bool = False
    status: int | None = None
    """Exit status as subprocess gives it; None while it runs, and for ever when it cannot be killed."""
    pid: int | None = None
    output: bytes = b""
    """Tail of what it printed."""

    @property
    def rank(self) -> int:
        return self.progress.rank


LEAST_SECONDS, MOST_SECONDS = 1e-9, 1e6
"""What one operation may take: shorter than any clock tells, and longer than any deadline."""
MOST = 1 << 53
"""A float holds every whole number up to here."""
MOST_TEXT, MOST_NAME, MOST_VERSIONS = 2000, 100, 20
"""Characters of an error and of a name, and names."""
MOST_SHOWN = 200
"""Bytes of a line that is no frame."""


def take(account: Account, line: bytes, steps: Sequence[Step]) -> Account:
    """The account after one more frame. A line that is no frame becomes its error, and after an error nothing counts.

    `steps`: all that were ordered so far.
    """
    if account.error:
        return account
    try:
        return _taken(account, json.loads(line, parse_constant=_no_number), steps)
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        return replace(account, error=f"it sent what is no frame: {line[:MOST_SHOWN]!r} ({error})")


def _taken(account: Account, frame: Any, steps: Sequence[Step]) -> Account:
    if not isinstance(frame, dict):
        raise TypeError("not an object")
    for key, fold in _KINDS.items():
        if key in frame:
            return fold(account, frame, steps)
    raise ValueError("it tells nothing that is known")


def _staged(account: Account, frame: Mapping[str, Any], steps: Sequence[Step]) -> Account:
    return replace(account, progress=_progress(account.rank, frame, steps))


def _progress(rank: int, frame: Mapping[str, Any], steps: Sequence[Step]) -> Progress:
    stage = frame["stage"]
    if stage not in STAGES:
        raise ValueError("no such stage")
    step = None if frame.get("step") is None else _number(frame, steps)
    if "size" not in frame:
        return Progress(rank=rank, stage=stage, step=step, ratio=1.0 if stage == "end" else 0.0)
    sizes = _whole(frame, "sizes", least=1)
    ratio = (_whole(frame, "size", most=sizes - 1) + _share(stage, frame)) / sizes
    return Progress(rank=rank, stage=stage, step=step, bytes=_whole(frame, "bytes"), ratio=ratio)


def _share(stage: str, frame: Mapping[str, Any]) -> float:
    """Of one size that is done."""
    if stage == "check":
        return 1.0
    if "operation" not in frame or stage == "warm_up":
        return 0.0
    operations = _whole(frame, "operations", least=1)
    return _whole(frame, "operation", most=operations) / operations


def _timed(account: Account, frame: Mapping[str, Any], steps: Sequence[Step]) -> Account:
    number = _number(frame, steps)
    step, told = steps[number], _told(account, steps[number])
    place = _whole(frame, "peer" if isinstance(step, Pairs) else "bytes")
    if not isinstance(step, Measure | Pairs) or place not in _owed(account.rank, step) or (number, place) in told:
        raise ValueError("not ordered, or told before")
    told = {**told, (number, place): _sized(frame, step.operations)}
    return replace(account, pairs=told) if isinstance(step, Pairs) else replace(account, sizes=told)


def _sized(frame: Mapping[str, Any], most: int) -> Sized:
    direct, seconds = frame.get("direct"), frame["seconds"]
    if direct is not None and not isinstance(direct, bool):
        raise ValueError("direct is neither true nor false")
    if not isinstance(seconds, list) or not 1 <= len(seconds) <= most:
        raise ValueError(f"seconds is no list of 1 to {most}")
    if not all(type(one) in {int, float} and LEAST_SECONDS <= one <= MOST_SECONDS for one in seconds):
        raise ValueError("seconds has what no operation takes")
    spoilt = _whole(frame, "spoilt") if "spoilt" in frame else 0
    return Sized(seconds=tuple(map(float, seconds)), wrong=_whole(frame, "wrong"), spoilt=spoilt, direct=direct)


def _stepped(account: Account, frame: Mapping[str, Any], steps: Sequence[Step]) -> Account:
    number = account.stepped
    if number >= len(steps) or _whole(frame, "stepped") != number + 1:
        raise ValueError("no such step, or not in order")
    step = steps[number]
    if any((number, place) not in _told(account, step) for place in _owed(account.rank, step)):
        raise ValueError("not all of the step was told")
    return replace(account, stepped=number + 1)


def _owed(rank: int, step: Step) -> Collection[int]:
    """The sizes, or the peers, that a rank has to tell of in this step: of each once."""
    if isinstance(step, Pairs):
        return {a + b - rank for together in step.rounds for a, b in together if rank in {a, b}}
    return step.sizes if isinstance(step, Measure) else ()


def _told(account: Account, step: Step) -> Mapping[tuple[int, int], Sized]:
    return account.pairs if isinstance(step, Pairs) else account.sizes


def _versioned(account: Account, frame: Mapping[str, Any], _steps: Sequence[Step]) -> Account:
    told = frame["versions"]
    if not isinstance(told, dict) or len(told) > MOST_VERSIONS:
        raise ValueError(f"versions is no object of at most {MOST_VERSIONS}")
    versions = {_text(name, MOST_NAME): _text(version, MOST_NAME) for name, version in told.items()}
    return replace(account, versions=versions)


def _absent(account: Account, frame: Mapping[str, Any], _steps: Sequence[Step]) -> Account:
    return replace(account, absent=_text(frame["absent"], MOST_NAME))


def _failed(account: Account, frame: Mapping[str, Any], _steps: Sequence[Step]) -> Account:
    return replace(account, error=_text(frame["error"], MOST_TEXT))


def _done(account: Account, frame: Mapping[str, Any], steps: Sequence[Step]) -> Account:
    if frame["done"] is not True or account.stepped != len(steps):
        raise ValueError("not all that was ordered is done")
    return replace(account, done=True)


_KINDS: Mapping[str, Callable[[Account, Mapping[str, Any], Sequence[Step]], Account]] = {
    "stage": _staged,
    "seconds": _timed,
    "stepped": _stepped,
    "versions": _versioned,
    "absent": _absent,
    "error": _failed,
    "done": _done,
}
"""By the key that tells them apart."""


def _text(told: Any, most: int) -> str:
    """On one line, bounded, and without what could steer the terminal that shows it, or be no text elsewhere."""
    if not isinstance(told, str):
        raise TypeError("not a text")
    return " ".join("".join(one if one.isprintable() else " " for one in told).split())[:most] or "?"


def _number(frame: Mapping[str, Any], steps: Sequence[Step]) -> int:
    """Of a step that was ordered."""
    number = _whole(frame, "step")
    if number >= len(steps):
        raise ValueError("no such step")
    return number


def _whole(frame: Mapping[str, Any], key: str, *, least: int = 0, most: int = MOST) -> int:
    value = frame.get(key)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{key} is no whole number from {least} to {most}")
    return value


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")
