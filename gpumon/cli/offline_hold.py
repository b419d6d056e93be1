"""Holds where no agent runs: in its store, for the one that starts next, and what one that was killed has left."""

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
    LOWER_DURATION,
    WindowKind,
    WindowRequest,
    Windows,
    WindowSelection,
    WindowsEnded,
    duration_problem,
    in_force,
    new_window,
)
from gpumon.outputs.responses.windows import HoldResponse
from gpumon.probe.core.probes import PROBES
from gpumon.probe.runner.process_marks import agent_of, has_gpus, is_orphaned_rank
from gpumon.store import windows
from gpumon.store.store import Store
from gpumon.store.store_error import StoreError

KILLED_SECONDS = 3.0
"""How long ranks may take to die with their agent."""
LOOK_SECONDS = 0.05
DEVICES = Path("/dev")
NO_AGENT = "No agent runs, so nothing of ours is on a GPU."
UNKNOWN = "An agent that is started before it is over does not know of it"


class InUse(Exception):  # noqa: N818 - it says what is so
    """An agent uses the store; the message says which process."""


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a hold or its end."""

    document: Mapping[str, Any]
    words: str
    certain: bool = True
    """Nothing of ours is on a GPU, nor comes there."""


def hold(store: Path, seconds: float, reason: str, owner: str, *, max_seconds: float) -> Done:
    """Begin one. Raises InUse, and UserError for one that is longer than `max_seconds` seconds."""
    wrong = duration_problem(seconds, max_seconds, "probe.max_hold_seconds")
    if wrong:
        raise UserError(f"{wrong} {LOWER_DURATION}")
    request = WindowRequest(kind=WindowKind.HOLD, seconds=seconds, by=COMMAND, owner=owner, reason=reason)
    window = new_window(request, wall=time.time(), at=boot_clock(), boot_id=boot_id())
    done = _kept(store, lambda known: time_window.start(known, window))
    left, others = _left(), sorted({*_of_others(), *_agents()})
    if others:
        words = f"An agent (process {', '.join(others)}) runs on GPUs of this host, and was not asked."
        return Done({}, f"{words} Name it, by --store.path or --web.listen-address.", certain=False)
    if left:
        words = f"No agent runs, and yet a rank of a probe does (process {', '.join(map(str, left))})."
        return Done({}, f"{words} Ask again in a while; what SIGKILL does not end sits in the driver.", certain=False)
    return done


def unhold(store: Path, owner: str) -> Done:
    """End one. Raises InUse."""
    selection = WindowSelection(kind=WindowKind.HOLD, owner=owner.strip(), by=COMMAND)

    def ended(known: Windows) -> Windows:
        ids = frozenset(window.id for window in in_force(known) if selection.matches(window))
        return time_window.end(known, WindowsEnded(ids=ids, by=COMMAND, wall=time.time(), at=boot_clock()))

    return _kept(store, ended)


def _kept(path: Path, change: Callable[[Windows], Windows]) -> Done:
    """In a store that is there: one that is made now could belong to another user than the agent's."""
    known: Windows = ()
    try:
        if not path.exists():
            return _done(change(known), stored=False, words=f"{NO_AGENT} {UNKNOWN}: there is no store {path}.")
        with Store.open(path) as store:
            known = _stored(store)
            with store.writing() as connection:
                windows.put(connection, change(known))
    except StoreError as error:
        if error.in_use:
            raise InUse(str(error)) from error
        return _done(change(known), stored=False, words=f"{NO_AGENT} {UNKNOWN}: {error}.")
    return _done(change(known), stored=True, words=f"{NO_AGENT} One that is started keeps to it.")


def _stored(store: Store) -> Windows:
    at = boot_clock()
    with store.reading() as connection:
        stored = windows.read(connection)
    return time_window.advance(stored, Now(at=at, wall=time.time(), uptime=at), boot_id())


def _done(known: Windows, *, stored: bool, words: str) -> Done:
    response = HoldResponse.from_windows(in_force(known, WindowKind.HOLD))
    return Done({"hold": None if response is None else response.document(), "stored": stored}, words)


def _left() -> tuple[int, ...]:
    """Ranks that are there although their agent is not, after they had time to go."""
    deadline = time.monotonic() + KILLED_SECONDS
    while (left := tuple(_ranks())) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    return left


def _of_others() -> list[str]:
    """Pids of the agents that have ranks on GPUs, wherever they listen."""
    return sorted({agent_of(one) for one in _processes() if not _is_orphan(one) and has_gpus(one)})


def _agents() -> Iterator[str]:
    """Pids of those that run; none has a GPU where there is none, nor one that says that it simulates."""
    if any(DEVICES.glob("nvidia[0-9]*")):
        for one in Path("/proc").glob("[0-9]*"):
            words = _read(one / "cmdline").decode(errors="replace").split("\0")
            serves = any((Path(program).name, word) == ("gpumon", "serve") for program, word in pairwise(words))
            if serves and not any(word.startswith("--simulate") for word in words):
                yield one.name


def _ranks() -> list[int]:
    """Those that have lost the agent that started them, and what they have started."""
    started = (one for one in Path("/proc").glob("[0-9]*") if is_orphaned_rank(one))
    return sorted({int(one.name) for one in (*filter(_is_orphan, _processes()), *started)})


def _processes() -> list[Path]:
    """All ranks."""
    workers = {str(probe.worker).encode() for probe in PROBES.values()}
    return [one for one in Path("/proc").glob("[0-9]*") if workers & _words(one / "cmdline")]


def _is_orphan(process: Path) -> bool:
    """Return whether the process lives, also if its details belong to another user and cannot be read."""
    return agent_of(process) != _parent(process)


def _parent(process: Path) -> str:
    lines = _read(process / "status").splitlines()
    return next((line.split()[1].decode() for line in lines if line.startswith(b"PPid:")), "")


def _words(path: Path) -> set[bytes]:
    return set(_read(path).split(b"\0"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""
