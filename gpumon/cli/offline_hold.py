"""Holds on a host where no agent runs: they are stored for the next agent. Ranks of a killed agent are detected."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpumon.cli.errors import UserError
from gpumon.clock import boot_clock, boot_id
from gpumon.model import time_window
from gpumon.model.now import Now
from gpumon.model.time_window import (
    COMMAND,
    END_SOME,
    LOWER_DURATION,
    WindowKind,
    WindowRequest,
    Windows,
    WindowSelection,
    WindowsEnded,
    duration_problem,
    in_force,
    new_window,
    number_problem,
)
from gpumon.outputs.responses.windows import HoldResponse
from gpumon.probe.core.probes import PROBES
from gpumon.probe.runner.process_marks import agent_of, has_gpus, is_orphaned_rank
from gpumon.store import windows
from gpumon.store.store import Store
from gpumon.store.store_error import StoreError

KILLED_SECONDS = 3.0
"""Time that ranks may take to end after their agent."""
POLL_SECONDS = 0.05
DEVICES = Path("/dev")
NO_AGENT = "No agent runs, so no process of gpumon is on a GPU."
NOT_STORED = "This could not be stored for the next agent"


class StoreInUseError(Exception):
    """An agent uses the store; the message names its process."""


@dataclass(frozen=True, slots=True)
class HoldOutcome:
    """The result of a hold or of its end."""

    document: Mapping[str, Any]
    """The response of the API."""
    message: str
    certain: bool = True
    """Whether it is certain that no process of a probe is on a GPU, or comes there before the hold ends."""


def hold(store: Path, seconds: float, reason: str, owner: str, *, max_seconds: float) -> HoldOutcome:
    """Store a hold. Raises StoreInUseError, and UserError if it is longer than `max_seconds`."""
    problem = duration_problem(seconds, max_seconds, "probe.max_hold_seconds")
    if problem:
        raise UserError(f"{problem} {LOWER_DURATION}")
    request = WindowRequest(kind=WindowKind.HOLD, seconds=seconds, by=COMMAND, owner=owner, reason=reason)
    window = new_window(request, wall=time.time(), at=boot_clock(), boot_id=boot_id())

    def start(stored: Windows) -> Windows:
        if problem := number_problem(stored, window):
            raise UserError(f"{problem} {END_SOME}")
        return time_window.start(stored, window)

    outcome = _change_store(store, start)
    ranks, agents = _remaining_ranks(), sorted({*_agents_with_ranks(), *_agents()})
    if agents:
        message = f"Another agent (process {', '.join(agents)}) runs on GPUs of this host, and its probes are not held."
        return HoldOutcome({}, f"{message} Give its --store.path or --web.socket.", certain=False)
    if ranks:
        message = f"No agent runs, but a rank of a probe does (process {', '.join(map(str, ranks))})."
        advice = "Retry later; a process that SIGKILL does not end is blocked in the driver."
        return HoldOutcome({}, f"{message} {advice}", certain=False)
    return outcome


def unhold(store: Path, owner: str) -> HoldOutcome:
    """End a stored hold. Raises StoreInUseError."""
    selection = WindowSelection(kind=WindowKind.HOLD, owner=owner.strip(), by=COMMAND)

    def end(stored: Windows) -> Windows:
        ids = frozenset(window.id for window in in_force(stored) if selection.matches(window))
        return time_window.end(stored, WindowsEnded(ids=ids, by=COMMAND, wall=time.time(), at=boot_clock()))

    return _change_store(store, end)


def _change_store(path: Path, change: Callable[[Windows], Windows]) -> HoldOutcome:
    """Change the windows in an existing store. No store is created: it could belong to another user than the agent."""
    stored: Windows = ()
    try:
        if not path.exists():
            return _outcome(change(stored), stored=False, message=f"{NO_AGENT} {NOT_STORED}: there is no store {path}.")
        with Store.open(path) as store:
            stored = _current_windows(store)
            with store.writing() as connection:
                windows.put(connection, change(stored))
    except StoreError as error:
        if error.in_use:
            raise StoreInUseError(str(error)) from error
        return _outcome(change(stored), stored=False, message=f"{NO_AGENT} {NOT_STORED}: {error}.")
    return _outcome(change(stored), stored=True, message=f"{NO_AGENT} This is stored for the next agent.")


def _current_windows(store: Store) -> Windows:
    at = boot_clock()
    with store.reading() as connection:
        stored = windows.read(connection)
    return time_window.advance(stored, Now(at=at, wall=time.time(), uptime=at), boot_id())


def _outcome(after: Windows, *, stored: bool, message: str) -> HoldOutcome:
    response = HoldResponse.from_windows(in_force(after, WindowKind.HOLD))
    return HoldOutcome({"hold": None if response is None else response.document(), "stored": stored}, message)


def _remaining_ranks() -> tuple[int, ...]:
    """Return the ranks whose agent is gone, after they have had time to end."""
    deadline = time.monotonic() + KILLED_SECONDS
    while (ranks := tuple(_orphaned_ranks())) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return ranks


def _agents_with_ranks() -> list[str]:
    """Return the pids of agents that have ranks on GPUs, whatever their address."""
    return sorted({agent_of(rank) for rank in _ranks() if not _is_orphan(rank) and has_gpus(rank)})


def _agents() -> Iterator[str]:
    """Yield the pids of running agents if the host has GPUs, except those of a simulated node."""
    if not any(DEVICES.glob("nvidia[0-9]*")):
        return
    for process in Path("/proc").glob("[0-9]*"):
        words = _read(process / "cmdline").decode(errors="replace").split("\0")
        serves = any((Path(program).name, word) == ("gpumon", "serve") for program, word in pairwise(words))
        if serves and not any(word.startswith("--simulate") for word in words):
            yield process.name


def _orphaned_ranks() -> list[int]:
    """Return the pids of ranks without their agent, and of the processes that they started."""
    descendants = (process for process in Path("/proc").glob("[0-9]*") if is_orphaned_rank(process))
    return sorted({int(process.name) for process in (*filter(_is_orphan, _ranks()), *descendants)})


def _ranks() -> list[Path]:
    workers = {str(probe.worker).encode() for probe in PROBES.values()}
    return [process for process in Path("/proc").glob("[0-9]*") if workers & _words(process / "cmdline")]


def _is_orphan(process: Path) -> bool:
    """Return whether the agent of a rank has ended: its parent is another process, or its mark cannot be read."""
    return agent_of(process) != _parent(process)


def _parent(process: Path) -> str:
    lines = _read(process / "status").splitlines()
    return next((line.split()[1].decode() for line in lines if line.startswith(b"PPid:")), "")


def _words(path: Path) -> set[bytes]:
    return set(_read(path).split(b"\0"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""
