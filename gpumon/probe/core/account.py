"""What one rank has told so far, folded from its frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
