"""Frozen values that describe what was read about the ranks of a job. They are also the JSON of `gpumon explain`."""

from __future__ import annotations

from dataclasses import dataclass

MAX_RANKS = 1 << 16
NO_PROCESS = "X"
"""State of a rank whose process is gone. The other states are letters of /proc/PID/stat, such as R, S, D, T and Z."""


class ReadError(Exception):
    """Raised if evidence cannot be read. The message states why."""


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of Python code, as in a traceback."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class RecordedOperation:
    """An operation that a rank enqueued: an entry of its flight recorder."""

    group: str
    sequence: int
    """Number of the collective in its group, counted from 1. Point-to-point operations have numbers of their own."""
    name: str
    """Name with the backend, such as nccl:all_reduce."""
    completed: bool
    p2p: bool = False
    sizes: str = ""
    enqueued_at: float | None = None
    stack: tuple[CodeLine, ...] = ()

    @property
    def blocking(self) -> bool:
        """Whether the operation blocks the thread that calls it, as with gloo and not with NCCL."""
        return self.name.startswith("gloo:")

    def __str__(self) -> str:
        return f"{self.name} {self.sequence} of group {self.group}"


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The last collectives of a process group at one rank. None: not recorded."""

    name: str
    description: str
    ranks: tuple[int, ...]
    """Members as ranks of the job; empty: not recorded."""
    enqueued: int | None = None
    completed: int | None = None
    unrecorded: bool = False
    """Whether operations without an entry were counted, such as send and recv of gloo: one may be pending."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The content of the flight recorder of one rank."""

    version: str
    groups: tuple[GroupStatus, ...]
    operations: tuple[RecordedOperation, ...]
    nccl_version: str = ""

    @property
    def pending(self) -> tuple[RecordedOperation, ...]:
        return tuple(operation for operation in self.operations if not operation.completed)

    @property
    def position(self) -> tuple[tuple[str, int | None, int | None], ...]:
        """The last collectives of all groups, which change while the rank moves."""
        return tuple((group.name, group.enqueued, group.completed) for group in self.groups)

    @property
    def blocking(self) -> bool:
        return bool(self.operations) and all(each.blocking for each in self.operations)


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """What was read about one rank. None: not read."""

    rank: int
    host: str
    pid: int | None = None
    state: str | None = None
    """Letter of the process state before its stack was read, or NO_PROCESS."""
    wchan: str = ""
    """Kernel function in which the process sleeps; empty: not read."""
    gpu: str | None = None
    recording: Recording | None = None
    stack: tuple[CodeLine, ...] | None = None
    """Stack of the main thread, innermost line first."""
    stack_unchanged: bool | None = None
    """Whether two samples of the stack are equal."""
    traceback_answered: bool | None = None
    """Whether the worker server returned a traceback, for which it needs the GIL."""
    moving: bool | None = None
    """Whether the recording changed between samples."""
    waiting_shares: tuple[float, ...] = ()
    """Share of the samples in which the rank waited in a collective, for each half of the samples."""


@dataclass(frozen=True, slots=True)
class Unread:
    """Something that could not be read, and why."""

    subject: str
    reason: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was read about the ranks of one job."""

    job: str
    ranks: tuple[RankEvidence, ...] = ()
    unread: tuple[Unread, ...] = ()
    size: int | None = None
    """Number of ranks of the job on all hosts."""
    user: str | None = None
    """Name of the user, which a bundle masks; None if it is unknown."""
    read_at: float | None = None
    """Unix time; None for dumps, which may be old."""
    ending: bool = False
    """Whether processes of the job ended while they were read."""

    @property
    def numbers(self) -> frozenset[int]:
        """The ranks of the job, read or not."""
        return frozenset(each.rank for each in self.ranks) | frozenset(range(min(self.size or 0, MAX_RANKS)))
