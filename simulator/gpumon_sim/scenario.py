"""Reads a scenario file, validates its content against the table of faults, and reads the file again if it changes."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml

from gpumon import trusted_file
from gpumon.model.orders import SimulationError
from gpumon.model.snapshot import GUEST, HOST
from gpumon_sim import port_counters, shapes, workload
from gpumon_sim.arrivals import ScenarioXid
from gpumon_sim.board import Profile
from gpumon_sim.faults.keys import KEYS
from gpumon_sim.faults.row import ScenarioKey
from gpumon_sim.mig import Layout, LayoutError, RequestedInstance, place
from gpumon_sim.physics import Workload
from gpumon_sim.sim_gpu import Identity
from gpumon_sim.stuck import Stuck

_logger = logging.getLogger(__name__)

CHECK_EVERY = 0.25
"""Minimum interval in seconds at which the file is checked for changes."""
MIN_AGE = 0.05
"""Seconds that must pass after a change of the file before it is read, so that no half-written file is read."""

Rows = tuple[tuple[ScenarioKey, Any], ...]
_ORDER = {key: n for n, key in enumerate(KEYS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The validated content of a scenario file: faults of the node and of GPUs, workloads, MIG layouts."""

    identities: tuple[Identity, ...]
    node: Rows = ()
    gpus: tuple[Rows, ...]
    """For each GPU (by position in the profile), the faults with their values, in the order of KEYS. If a key is set
    for the GPU and under "*", the fault of "*" comes first, so that the GPU's own value is applied last.
    """
    workloads: tuple[Workload, ...]
    layouts: tuple[Layout | None, ...]
    """GPU instances of each GPU; None for a GPU with MIG disabled."""
    seed: int = 0
    driver: str
    place: str
    """Kind of system that the agent's child processes detect: one of PLACES (host, guest, container, sandbox)."""

    def rows(self, gpu: int | None) -> Rows:
        """Return the faults, with values, that can affect a call on a GPU or, if `gpu` is None, a call on no GPU."""
        return self.node if gpu is None else self.node + self.gpus[gpu]

    def hanging(self, gpu: int | None) -> list[str]:
        """Return the patterns of the functions that hang in a call on a GPU or, if `gpu` is None, a call on no GPU."""
        return [pattern for fault, patterns in self.rows(gpu) if fault.key == "hang" for pattern in patterns]

    def xids(self, gpu: int) -> tuple[ScenarioXid, ...]:
        return tuple(xid for fault, xids in self.gpus[gpu] if fault.key == "xids" for xid in xids)


def parse(text: str, profile: Profile) -> Scenario:
    """Parse and validate the text of a scenario file. Raise YAMLError if it is not YAML, ShapeError if invalid.

    PyYAML may raise ValueError, OverflowError or RecursionError for some texts that are not valid YAML.
    """
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
    except (ValueError, OverflowError) as error:
        raise yaml.YAMLError(f"line {loader.line + 1}: {error}") from error
    document = None if root is None else loader.construct_document(root)
    top = {} if document is None else shapes.by_key(_plain_key, _accept)(document, ())
    by_gpu = top.pop("gpus", {})
    node = _rows({key: value for key, value in top.items() if key != "gpus"}, (), on_node=True)
    named = {fault.key: value for fault, value in node}
    seed = named.get("seed", 0)
    for key in ("jobs", "stuck_processes"):
        _check_gpus(key, named.get(key, ()), len(profile.bus_ids))
    port_counters.check(named.get("ports", {}), named.get("nics", ()), profile)
    identities = tuple(_identity(profile, seed, n) for n in range(len(profile.bus_ids)))
    gpus = _gpus(by_gpu, identities)
    layouts = tuple(_layout(profile, n, rows) for n, rows in enumerate(gpus))
    return Scenario(
        identities=identities,
        node=node,
        gpus=gpus,
        workloads=tuple(_workload(node + rows, seed, n, layouts[n]) for n, rows in enumerate(gpus)),
        layouts=layouts,
        seed=seed,
        driver=named.get("driver_version", profile.driver),
        place=named.get("place", GUEST if profile.guest else HOST),
    )


def _check_gpus(key: str, entries: Sequence[workload.ScenarioJob | Stuck], gpus: int) -> None:
    """Raise ShapeError if an entry of the scenario's list `key` names a GPU that the profile does not have."""
    for n, entry in enumerate(entries):
        if entry.gpus and max(entry.gpus) >= gpus:
            raise shapes.ShapeError((key, n, "gpus"), f"no GPU {max(entry.gpus)}; there are 0 to {gpus - 1}")


def _gpus(by_gpu: Any, identities: tuple[Identity, ...]) -> tuple[Rows, ...]:
    entries = shapes.by_key(_plain_key, _accept)(by_gpu, ("gpus",))
    names = {"*", *range(len(identities)), *(identity.uuid for identity in identities)}
    for key in entries:
        if key not in names:
            problem = f"no GPU {key!r}; there are 0 to {len(identities) - 1}, their uuids, and '*' for all"
            raise shapes.ShapeError(("gpus", key), problem)
    parsed = {key: _rows(entry, ("gpus", key), on_node=False) for key, entry in entries.items()}
    return tuple(
        _sort_rows(parsed.get("*", ()) + parsed.get(identity.number, ()) + parsed.get(identity.uuid, ()))
        for identity in identities
    )


def _rows(entry: Any, path: shapes.Path, *, on_node: bool) -> Rows:
    allowed = {key: row.shape for key, row in KEYS.items() if (row.node if on_node else row.gpu)}
    if on_node:
        allowed["gpus"] = _accept
    values = shapes.fields(allowed)(entry, path)
    return _sort_rows(tuple((KEYS[key], value) for key, value in values.items()))


def _sort_rows(rows: Rows) -> Rows:
    return tuple(sorted(rows, key=lambda row: _ORDER[row[0].key]))


def _layout(profile: Profile, gpu: int, rows: Rows) -> Layout | None:
    names = profile.mig[gpu] if profile.mig else None
    layout = None if names is None else tuple(map(RequestedInstance, names))
    for fault, value in rows:
        layout = value if fault.key == "mig" else layout
    try:
        return None if layout is None else place(profile.board, layout)
    except LayoutError as error:
        raise shapes.ShapeError(("gpus", gpu, "mig"), str(error)) from error


def _workload(rows: Rows, seed: int, gpu: int, layout: Layout | None) -> Workload:
    if layout == ():  # MIG is enabled, but no GPU instance exists in which a process could run
        return workload.IDLE
    plans = [fault.plan(value, seed, gpu) for fault, value in rows if fault.plan is not None]
    return next((plan for plan in reversed(plans) if plan is not None), workload.default_workload(seed))


def _identity(profile: Profile, seed: int, number: int) -> Identity:
    digest = hashlib.sha256(f"{profile.name}/{seed}/{number}".encode()).hexdigest()
    uuid = UUID(digest[:32])
    return Identity(number, profile.bus_ids[number], f"GPU-{uuid}", f"165{int(digest[32:48], 16) % 10**10:010}")


def _plain_key(key: Any, path: shapes.Path) -> Any:
    if not isinstance(key, str | int):
        raise shapes.ShapeError(path, f"{key!r} cannot be a key here")
    return key


def _accept(value: Any, _path: shapes.Path) -> Any:
    return value


class ScenarioFile:
    """A scenario file that may change. `current` is the last valid scenario; without a file, a healthy node.

    The constructor raises SimulationError if the file cannot be used.
    """

    def __init__(self, path: Path | None, profile: Profile) -> None:
        self._path = path
        self._profile = profile
        self._fingerprint = _fingerprint(path) if path else None
        self._next_check = 0.0
        self.current = self._read(path) if path else parse("", profile)

    def due(self) -> bool:
        """Return True if there is a file, and CHECK_EVERY seconds have passed since the last check for a change."""
        return self._path is not None and time.monotonic() >= self._next_check

    def refresh(self) -> bool:
        """Read the file again if it changed, at most every CHECK_EVERY seconds. Return True if `current` is replaced.

        If the file is invalid or unreadable, the last valid scenario stays active, and the problem is logged once.
        """
        if self._path is None or not self.due():
            return False
        self._next_check = time.monotonic() + CHECK_EVERY
        fingerprint = _fingerprint(self._path)
        if fingerprint == self._fingerprint or (fingerprint and 0 <= time.time() - fingerprint[0] / 1e9 < MIN_AGE):
            return False
        try:
            scenario = self._read(self._path)
        except SimulationError as error:
            if fingerprint == _fingerprint(self._path):
                self._fingerprint = fingerprint
                _logger.warning("%s; the previous scenario stays active", error)
            return False
        if fingerprint != _fingerprint(self._path):
            return False
        self._fingerprint, self.current = fingerprint, scenario
        return True

    def _read(self, path: Path) -> Scenario:
        try:
            text = trusted_file.read_text(path)
        except (OSError, UnicodeDecodeError) as error:
            raise SimulationError(f"scenario {path}: cannot be read ({error}): name a readable YAML file") from error
        try:
            return parse(text, self._profile)
        except shapes.ShapeError as error:
            place = ".".join(str(key) for key in error.path) or "the file"
            line = _line(yaml.compose(text, Loader=yaml.SafeLoader), error.path)
            raise SimulationError(f"scenario {path}:{line}: {place}: {error}") from error
        except (
            yaml.YAMLError,
            ValueError,
            OverflowError,
            RecursionError,
        ) as error:  # PyYAML accepts some invalid dates, numbers and characters and fails later
            raise SimulationError(
                f"scenario {path}: not YAML ({error}); a key that begins with * has to be quoted"
            ) from error


def _fingerprint(path: Path) -> tuple[int, int, int] | None:
    """Return a file's modification time in ns, size and inode; None if these cannot be read."""
    try:
        status = os.stat(path)  # noqa: PTH116 - twice as fast as Path.stat, and NVML calls wait for it
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _line(node: yaml.Node | None, path: shapes.Path) -> int:
    """Return the line (from 1) of the entry at `path` in a YAML document, or of the last existing entry on the path."""
    line = node.start_mark.line + 1 if node else 1
    if not path or not isinstance(node, yaml.CollectionNode):
        return line
    if isinstance(node, yaml.MappingNode):
        below: Mapping[str, tuple[yaml.Node, yaml.Node]] = {key.value: (key, value) for key, value in node.value}
        if str(path[0]) not in below:
            return line
        key, value = below[str(path[0])]
        return _line(value, path[1:]) if path[1:] else key.start_mark.line + 1
    return _line(node.value[int(path[0])], path[1:])
