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
from benchmarks.truth.measure import CalmOutcome, FaultOutcome, measure, measure_disturbance
from benchmarks.truth.pairs import PairOutcome, measure_pair, pairs
from benchmarks.truth.rows import MEASURED_FAULTS

CALM_ON = ("h100x8", "gb200x4", "l40sx4", "t4x1", "h100guestx2")
"""Profiles on which disturbances are measured."""
HOURS = 0.4
"""Simulated hours per disturbance and profile."""
MEASURED = Path(__file__).parent / "measured.jsonl"
"""The results from which docs/truth.md is generated."""
REPORTING = ("__main__.py", "page.py", "work.py")
"""Modules that share the measurements among processes and report them: no result depends on them."""
FRESH = 60
"""Number of pieces after which the worker processes are replaced."""
WORKERS = 1 + (os.cpu_count() or 1)
"""One more than the CPUs: each worker waits for the thread of its store a quarter of the time."""

Result = FaultOutcome | PairOutcome | CalmOutcome
_FAULTS = {fault.name: fault for fault in MEASURED_FAULTS}
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
    for fault in MEASURED_FAULTS:
        yield from (Piece("fault", (fault.name,), name) for name, kind in PROFILES.items() if fault.on(kind))
    yield from (Piece("pair", (one, other), profile, same) for one, other, profile, same in pairs())
    for calm in DISTURBANCES:
        yield from (Piece("calm", (calm.name,), name) for name in disturbance_profiles(calm.on))


def quick_pieces() -> Iterator[Piece]:
    """Yield every fault on its smallest node."""
    for fault in MEASURED_FAULTS:
        names = [name for name, kind in PROFILES.items() if fault.on(kind)]
        yield Piece("fault", (fault.name,), min(names, key=lambda name: len(PROFILES[name].bus_ids)))


def disturbance_profiles(on: Callable[..., bool]) -> list[str]:
    found = [name for name in CALM_ON if on(PROFILES[name])]
    return found or [name for name, kind in PROFILES.items() if on(kind)][:2]


def measure_all(pieces: Sequence[Piece], store: ResultStore, report_progress: Callable[[int, Piece], None]) -> None:
    """Measure the pieces and add each result to the store as soon as there is one."""
    done = 0
    for begin in range(0, len(pieces), FRESH):
        # Spawn new processes: this one may have threads, and a new process frees what earlier worlds leave behind.
        with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
            waiting = {pool.submit(piece.run): piece for piece in pieces[begin : begin + FRESH]}
            for future in as_completed(waiting):
                store.add(future.result())
                done += 1
                report_progress(done, waiting[future])


class ResultStore:
    """The newest result of each piece, in a file with one row of JSON for each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[Piece, tuple[Result, str]] = {}
        self._state = state_of_code()
        for line in path.read_text().splitlines() if path.exists() else ():
            result, state = _read(line)
            self._rows[piece_of(result)] = result, state

    def is_current(self, piece: Piece) -> bool:
        """Return whether the piece was measured with the present code."""
        return piece in self._rows and self._rows[piece][1] == self._state

    def results(self, pieces: Iterable[Piece]) -> list[Result]:
        """Return the results of those of the pieces that were measured, in their order."""
        return [self._rows[piece][0] for piece in pieces if piece in self._rows]

    def states(self, pieces: Iterable[Piece]) -> int:
        """Return the number of versions of the code with which these pieces were measured."""
        return len({self._rows[piece][1] for piece in pieces if piece in self._rows})

    def add(self, result: Result) -> None:
        self._rows[piece_of(result)] = result, self._state
        with self._path.open("a") as file:
            file.write(_row(result, self._state))

    def write(self, pieces: Iterable[Piece]) -> None:
        """Rewrite the file with one row for each of these pieces that was measured, in their order."""
        self._path.write_text("".join(_row(*self._rows[piece]) for piece in pieces if piece in self._rows))


def piece_of(result: Result) -> Piece:
    if isinstance(result, FaultOutcome):
        return Piece("fault", (result.fault,), result.profile)
    if isinstance(result, PairOutcome):
        return Piece("pair", result.names, result.profile, result.same_gpu)
    return Piece("calm", (result.name,), result.profile, hours=result.hours)


def state_of_code() -> str:
    """Return a short digest of all files on which a result may depend."""
    root = Path(__file__).parents[2]
    digest = sha256()
    rooms = ("gpumon", "simulator/gpumon_sim", "benchmarks/truth")
    for file in sorted(file for room in rooms for file in (root / room).rglob("*.py")):
        if file.parent != Path(__file__).parent or file.name not in REPORTING:
            digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def _row(result: Result, state: str) -> str:
    values = {name: value for name, value in asdict(result).items() if value not in ((), "")}
    return json.dumps({"kind": piece_of(result).kind, **values, "state": state}) + "\n"


def _read(line: str) -> tuple[Result, str]:
    row = json.loads(line)
    kind, state = row.pop("kind"), row.pop("state")
    kinds: Mapping[str, type[Result]] = {"fault": FaultOutcome, "pair": PairOutcome, "calm": CalmOutcome}
    return kinds[kind](**{name: _tuple(value) for name, value in row.items()}), state


def _tuple(value: Any) -> Any:
    """Convert lists, which JSON has, to tuples."""
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
