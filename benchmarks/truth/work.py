"""The measurements, as pieces of work that are shared among processes."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from gpumon_sim.profiles import PROFILES

from benchmarks.truth.benign import DISTURBANCES
from benchmarks.truth.faults import FAULTS
from benchmarks.truth.measure import CalmOutcome, FaultOutcome, measure, measure_disturbance
from benchmarks.truth.pairs import PairOutcome, measure_pair, pairs

CALM_ON = ("h100x8", "gb200x4", "l40sx4", "t4x1", "h100guestx2")
"""Profiles on which disturbances are measured."""
HOURS = 0.4
"""Simulated hours per disturbance and profile."""
FRESH = 60
"""Number of pieces after which the worker processes are replaced."""
WORKERS = 1 + (os.cpu_count() or 1)
"""One more than the CPUs: each worker waits for the thread of its store a quarter of the time."""

Result = FaultOutcome | PairOutcome | CalmOutcome
_FAULTS = {fault.name: fault for fault in FAULTS}
_CALMS = {disturbance.name: disturbance for disturbance in DISTURBANCES}


@dataclass(frozen=True, slots=True)
class Piece:
    """One measurement: its table, its rows and its node."""

    kind: str
    names: tuple[str, ...]
    profile: str
    same_gpu: bool = False
    hours: float = HOURS

    def run(self) -> Result:
        logging.disable(logging.CRITICAL)  # the agent logs every fault
        if self.kind == "fault":
            return measure(_FAULTS[self.names[0]], self.profile)
        if self.kind == "pair":
            one, other = (_FAULTS[name] for name in self.names)
            return measure_pair(one, other, self.profile, same_gpu=self.same_gpu)
        return measure_disturbance(_CALMS[self.names[0]], self.profile, self.hours)


def all_pieces() -> Iterator[Piece]:
    """Yield every fault on every possible profile, the pairs, and the disturbances."""
    for fault in FAULTS:
        yield from (Piece("fault", (fault.name,), name) for name, kind in PROFILES.items() if fault.on(kind))
    yield from (Piece("pair", (one, other), profile, same) for one, other, profile, same in pairs())
    for calm in DISTURBANCES:
        yield from (Piece("calm", (calm.name,), name) for name in disturbance_profiles(calm.on))


def quick_pieces() -> Iterator[Piece]:
    """Yield every fault on its smallest node."""
    for fault in FAULTS:
        names = [name for name, kind in PROFILES.items() if fault.on(kind)]
        yield Piece("fault", (fault.name,), min(names, key=lambda name: len(PROFILES[name].bus_ids)))


def disturbance_profiles(on: Callable[..., bool]) -> list[str]:
    found = [name for name in CALM_ON if on(PROFILES[name])]
    return found or [name for name, kind in PROFILES.items() if on(kind)][:2]


def measure_all(
    pieces: Sequence[Piece], known: ResultStore, report_progress: Callable[[int, Piece], None]
) -> list[Result]:
    """Return the results in the order of the pieces; stored results are not measured again."""
    left = [piece for piece in pieces if piece not in known]
    done = len(pieces) - len(left)
    for begin in range(0, len(left), FRESH):
        # Spawn new processes: this one may have threads, and a new process frees what earlier worlds leave behind.
        with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
            waiting = {pool.submit(piece.run): piece for piece in left[begin : begin + FRESH]}
            for future in as_completed(waiting):
                known.add(waiting[future], future.result())
                done += 1
                report_progress(done, waiting[future])
    return [known[piece] for piece in pieces]


class ResultStore:
    """Results by piece, also in a file if one is given, so that an interrupted measurement can continue."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._results: dict[Piece, Result] = {}
        self._states: dict[Piece, str] = {}
        self._state = state_of_code()
        for line in path.read_text().splitlines() if path is not None and path.exists() else ():
            piece, result, state = _read(line)
            self._results[piece], self._states[piece] = result, state

    def __contains__(self, piece: Piece) -> bool:
        return piece in self._results

    def __getitem__(self, piece: Piece) -> Result:
        return self._results[piece]

    def add(self, piece: Piece, result: Result) -> None:
        self._results[piece], self._states[piece] = result, self._state
        if self._path is not None:
            row = {"piece": asdict(piece), "result": asdict(result), "state": self._state}
            with self._path.open("a") as file:
                file.write(json.dumps(row) + "\n")

    def states(self, pieces: Iterable[Piece]) -> int:
        """Return the number of versions of the code with which these pieces were measured."""
        return len({self._states[piece] for piece in pieces})


def state_of_code() -> str:
    """Return a short digest of all files on which a result may depend."""
    root = Path(__file__).parents[2]
    digest = sha256()
    for file in sorted(
        file for room in ("gpumon", "simulator/gpumon_sim", "benchmarks/truth") for file in (root / room).rglob("*.py")
    ):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def _read(line: str) -> tuple[Piece, Result, str]:
    """Parse a row; a row without a version of the code counts as a separate version."""
    row = json.loads(line, object_hook=_tuples)
    piece = Piece(**row["piece"])
    kinds: Mapping[str, type[FaultOutcome | PairOutcome | CalmOutcome]] = {
        "fault": FaultOutcome,
        "pair": PairOutcome,
        "calm": CalmOutcome,
    }
    return piece, kinds[piece.kind](**row["result"]), row.get("state", "")


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    """Convert lists, which JSON has, to tuples."""
    return {name: _tuple(value) for name, value in values.items()}


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
