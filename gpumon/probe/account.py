"""What one rank has told so far, folded from its frames."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a rank is."""

    rank: int
    stage: str = "start"
    """start, import, join; for each size allocate, warm_up, measure, check, or repeat for all of them; locate; end."""
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


def take(account: Account, line: bytes) -> Account:
    """The account after one more frame. A line that is no frame becomes the account's error."""
    try:
        return _taken(account, json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return replace(account, error=f"it sent what is no frame: {line[:200]!r} ({error})")


def _taken(account: Account, frame: Mapping[str, Any]) -> Account:
    if "stage" in frame:
        return replace(account, progress=_progress(account.rank, frame))
    if "seconds" in frame:
        return _timed(account, frame)
    if "stepped" in frame:
        return replace(account, stepped=int(frame["stepped"]))
    if "versions" in frame:
        return replace(account, versions={str(key): str(value) for key, value in frame["versions"].items()})
    error, absent = (str(frame.get(key, "")) for key in ("error", "absent"))
    return replace(account, error=error, absent=absent, done=bool(frame.get("done", False)))


def _timed(account: Account, frame: Mapping[str, Any]) -> Account:
    sized = Sized(
        seconds=tuple(float(one) for one in frame["seconds"]),
        wrong=int(frame["wrong"]),
        spoilt=int(frame.get("spoilt", 0)),
    )
    if frame.get("direct") is not None:
        sized = replace(sized, direct=bool(frame["direct"]))
    step = int(frame["step"])
    if "peer" in frame:
        return replace(account, pairs={**account.pairs, (step, int(frame["peer"])): sized})
    return replace(account, sizes={**account.sizes, (step, int(frame["bytes"])): sized})


def _progress(rank: int, frame: Mapping[str, Any]) -> Progress:
    stage, step = str(frame["stage"]), frame.get("step")
    if "size" not in frame:
        return Progress(rank=rank, stage=stage, step=step, ratio=1.0 if stage == "end" else 0.0)
    share = {"warm_up": 0.0, "check": 1.0}.get(stage, frame.get("operation", 0) / frame.get("operations", 1))
    ratio = (frame["size"] + share) / frame["sizes"]
    return Progress(rank=rank, stage=stage, step=step, bytes=int(frame["bytes"]), ratio=ratio)
