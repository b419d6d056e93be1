"""Parses the frames (JSON lines) that a rank sends, and collects their content in the rank's Account. Pure.

Ranks run third-party code, so their frames are not trusted.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpumon.probe.core.plan import Measure, Pairs, Step

STAGES = ("start", "import", "join", "allocate", "warm_up", "measure", "check", "locate", "end")
"""Stages of a rank, in order. `allocate` to `check` are repeated for each size."""
SETUP_STAGES = STAGES[: STAGES.index("warm_up")]
"""Stages before the first operation. A failure in one of them is no sign of a faulty link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The stage and step that a rank has reached, or the progress of a whole run."""

    rank: int
    stage: str = "start"
    """One of STAGES. In the progress of a run it is "repeat" while a size is measured again."""
    step: int | None = None
    """Index of the step in the pass; None before the first step and after the last."""
    algorithm: str = ""
    """NCCL algorithm being measured. It is set in the progress of a run only."""
    size: int | None = None
    """Size that the rank measures, in the probe's `size_unit`."""
    ratio: float = 0.0
    """Share of the step that is done, 0 to 1. In the progress of a run: share of the run."""

    def place(self, size_unit: str) -> str:
        return self.stage if self.size is None else f"{self.stage} of {self.size} {size_unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """Operation times and wrong elements of one rank at one size, in an operation or in exchanges with one peer."""

    seconds: tuple[float, ...]
    wrong: int
    wrong_send_elements: int = 0
    """Number of wrong elements in the send buffer of this rank. It is counted in pair exchanges only."""
    direct: bool | None = None
    """Whether CUDA reports direct access to the peer GPU's memory. It is None for other operations and on the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Everything that one rank has reported so far, with the exit status and the output of its process."""

    progress: Progress
    versions: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[tuple[int, int], Sized] = field(default_factory=dict)
    """Measurements of operations, keyed by step index and size."""
    pairs: Mapping[tuple[int, int], Sized] = field(default_factory=dict)
    """Measurements of pair exchanges, keyed by step index and peer rank. `wrong` counts data received from the peer."""
    stepped: int = 0
    """Number of steps that the rank has finished."""
    absent: str = ""
    """Name of a module, such as torch, that the Python interpreter lacks; empty if it lacks none."""
    error: str = ""
    done: bool = False
    status: int | None = None
    """Exit status as in subprocess.Popen.returncode; None while the rank runs, or if SIGKILL does not end it."""
    pid: int | None = None
    output: bytes = b""
    """The last bytes that the rank wrote to standard output and standard error."""

    @property
    def rank(self) -> int:
        return self.progress.rank


MIN_SECONDS, MAX_SECONDS = 1e-9, 1e6
MAX_NUMBER = 1 << 53
"""Max value of whole numbers in a frame. A float holds each whole number up to it exactly."""
MAX_TEXT, MAX_NAME, MAX_VERSIONS = 2000, 100, 20
"""Max characters of an error, max characters of a name, and max number of reported versions."""
MAX_SHOWN = 200


def fold_frame(account: Account, line: bytes, steps: Sequence[Step]) -> Account:
    """Return the account with one more frame (JSON) of its rank added. An invalid frame sets its error, which is final.

    `steps`: all steps that the rank was ordered to take so far.
    """
    if account.error:
        return account
    try:
        return _fold(account, json.loads(line), steps)
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        return replace(account, error=f"it sent an invalid frame: {line[:MAX_SHOWN]!r} ({error})")


def _fold(account: Account, frame: Any, steps: Sequence[Step]) -> Account:
    match frame:
        case {"stage": _}:
            folded = replace(account, progress=_progress(account.rank, frame, steps))
        case {"seconds": _}:
            folded = _fold_times(account, frame, steps)
        case {"stepped": _}:
            folded = _fold_step_end(account, frame, steps)
        case {"versions": versions}:
            folded = replace(account, versions=_versions(versions))
        case {"absent": name}:
            folded = replace(account, absent=_text(name, MAX_NAME))
        case {"error": error}:
            folded = replace(account, error=_text(error, MAX_TEXT))
        case {"done": True} if account.stepped == len(steps):
            folded = replace(account, done=True)
        case {"done": _}:
            raise ValueError("not all that was ordered is done")
        case dict():
            raise ValueError("unknown kind of frame")
        case _:
            raise TypeError("not an object")
    return folded


def _progress(rank: int, frame: Mapping[str, Any], steps: Sequence[Step]) -> Progress:
    stage = frame["stage"]
    if stage not in STAGES:
        raise ValueError("no such stage")
    step = None if frame.get("step") is None else _number(frame, steps)
    if "index" not in frame:
        return Progress(rank=rank, stage=stage, step=step, ratio=1.0 if stage == "end" else 0.0)
    sizes = _integer(frame, "sizes", minimum=1)
    done = 1.0 if stage == "check" else 0.0
    if "operation" in frame and stage not in {"check", "warm_up"}:
        operations = _integer(frame, "operations", minimum=1)
        done = _integer(frame, "operation", maximum=operations) / operations
    ratio = (_integer(frame, "index", maximum=sizes - 1) + done) / sizes
    return Progress(rank=rank, stage=stage, step=step, size=_integer(frame, "size"), ratio=ratio)


def _fold_times(account: Account, frame: Mapping[str, Any], steps: Sequence[Step]) -> Account:
    number = _number(frame, steps)
    step, reports = steps[number], _reports(account, steps[number])
    place = _integer(frame, "peer" if isinstance(step, Pairs) else "size")
    if (
        not isinstance(step, Measure | Pairs)
        or place not in _expected_places(account.rank, step)
        or (number, place) in reports
    ):
        raise ValueError("not ordered, or reported before")
    reports = {**reports, (number, place): _parse_sized(frame, step.operations)}
    return replace(account, pairs=reports) if isinstance(step, Pairs) else replace(account, sizes=reports)


def _parse_sized(frame: Mapping[str, Any], max_operations: int) -> Sized:
    direct, seconds = frame.get("direct"), frame["seconds"]
    if direct is not None and not isinstance(direct, bool):
        raise ValueError("direct is neither true nor false")
    if not isinstance(seconds, list) or not 1 <= len(seconds) <= max_operations:
        raise ValueError(f"seconds is no list of 1 to {max_operations}")
    if not all(type(duration) in {int, float} and MIN_SECONDS <= duration <= MAX_SECONDS for duration in seconds):
        raise ValueError("seconds contains an invalid time")
    return Sized(
        seconds=tuple(map(float, seconds)),
        wrong=_integer(frame, "wrong"),
        wrong_send_elements=_integer(frame, "wrong_send_elements") if "wrong_send_elements" in frame else 0,
        direct=direct,
    )


def _fold_step_end(account: Account, frame: Mapping[str, Any], steps: Sequence[Step]) -> Account:
    number = account.stepped
    if number >= len(steps) or _integer(frame, "stepped") != number + 1:
        raise ValueError("no such step, or not in order")
    step = steps[number]
    if any((number, place) not in _reports(account, step) for place in _expected_places(account.rank, step)):
        raise ValueError("the step is not complete")
    return replace(account, stepped=number + 1)


def _expected_places(rank: int, step: Step) -> Collection[int]:
    """Return the sizes (Measure step) or the peer ranks (Pairs step) for which a rank must report times."""
    if isinstance(step, Pairs):
        return {a + b - rank for together in step.rounds for a, b in together if rank in {a, b}}
    return step.sizes if isinstance(step, Measure) else ()


def _reports(account: Account, step: Step) -> Mapping[tuple[int, int], Sized]:
    return account.pairs if isinstance(step, Pairs) else account.sizes


def _versions(reported: Any) -> Mapping[str, str]:
    if not isinstance(reported, dict) or len(reported) > MAX_VERSIONS:
        raise ValueError(f"versions is no object of at most {MAX_VERSIONS}")
    return {_text(name, MAX_NAME): _text(version, MAX_NAME) for name, version in reported.items()}


def _text(text: Any, limit: int) -> str:
    """Return the text on one line, cut, without control characters; "?" if nothing is left."""
    if not isinstance(text, str):
        raise TypeError("not a text")
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())[:limit] or "?"


def _number(frame: Mapping[str, Any], steps: Sequence[Step]) -> int:
    number = _integer(frame, "step")
    if number >= len(steps):
        raise ValueError("no such step")
    return number


def _integer(frame: Mapping[str, Any], key: str, *, minimum: int = 0, maximum: int = MAX_NUMBER) -> int:
    value = frame.get(key)
    if type(value) is not int or not minimum <= value <= maximum:
        raise ValueError(f"{key} is no whole number from {minimum} to {maximum}")
    return value
