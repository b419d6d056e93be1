"""Recordings of a host's NVML answers: the data model, and the file format, which docs/captures.md describes.

A query is an NVML function, or one of the constants FIELD, METRIC, EVENT, BUS and UUIDS, with inputs. A recording has a
timeline for each query: the answers over time, without answers that equal the previous one (except for EVENT).
"""

from __future__ import annotations

import gzip
import json
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gpumon.model.orders import SimulationError

FORMAT, VERSION = "gpumon capture", 1
"""First key in a recording's file, and the value of this key: the format version. Other versions are rejected."""
LARGEST, MAX_ITEMS = 512 * 1024 * 1024, 10_000_000
"""Maximum size of an unpacked recording in bytes, and number of its values. An empty list of 3 bytes takes 64."""

FIELD = "one field"
"""Query for one field of nvmlDeviceGetFieldValues. Inputs: device, field id, scope. Answer: return code, value type,
the 8 value bytes as an integer, and 1 if the field had a timestamp, otherwise 0.
"""
METRIC = "one metric"
"""Query for one GPM metric. Inputs: device, GPU instance or null, metric id. Answer: return code, value."""
EVENT = "one event"
"""Query for delivered events. No inputs. Each answer is one event: return code, device, type, data, GPU instance,
compute instance. An event that equals the previous one is recorded too.
"""
BUS = "pci functions"
"""Query for the GPUs on the PCI bus. No inputs. Answer: return code 0, {bus id: bound kernel driver}."""
UUIDS = "known uuids"
"""Query for the uuids that the kernel module lists. No inputs. Answer: return code 0, {bus id: uuid}."""
HANGS = -1
"""Return code that is recorded for a call that did not return."""
INITIALISATIONS = ("nvmlInitWithFlags", "nvmlInit_v2")

Answer = tuple[Any, ...]
"""NVML's return code, then the output values if the call succeeded."""


class CapturedQuery(NamedTuple):
    """A recorded query: an NVML function, or FIELD, METRIC, EVENT, BUS or UUIDS, with its inputs.

    A recording maps each query to a timeline.
    """

    function: str
    inputs: tuple[Any, ...] = ()


@dataclass(slots=True)
class Timeline:
    """The recorded answers to a query. Each is valid until the next one. Times: seconds since the recording began."""

    times: list[float] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def add(self, time: float, answer: Answer, *, anyway: bool = False) -> None:
        """Append an answer unless it equals the last one. If `anyway` is true, append it even then."""
        if anyway or not self.answers or self.answers[-1] != answer:
            self.times.append(round(time, 3))
            self.answers.append(answer)

    def at(self, time: float) -> Answer:
        """Return the answer that is valid at this time. Before the first answer, return the first."""
        return self.answers[max(0, bisect_right(self.times, time) - 1)]


@dataclass(frozen=True, slots=True)
class Cost:
    """Number of recorded calls of an NVML function, and percentiles of their duration in microseconds."""

    calls: int
    median: float
    p90: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """First line of a recording's file: how and when the recording was made."""

    gpumon: str
    """Version of gpumon."""
    wall: str
    """Start of the recording: date and time in UTC."""
    seconds: float
    interval: float
    simulated: str | None
    """Name of the simulated profile; None for a real host."""
    masked: bool
    root: bool
    """True if the recorder ran as root. The driver refuses some calls from other users."""
    bindings: str
    """Version of pynvml (nvidia-ml-py)."""
    remarks: tuple[str, ...] = ()
    """Reasons why the recording was cut short."""


@dataclass(slots=True, kw_only=True)
class Capture:
    """A recording of NVML's answers, as `gpumon-sim record` writes it and the simulation replays it."""

    header: Header
    signatures: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Words that describe the arguments, as defined in signatures.py, for each function that was used."""
    costs: dict[str, Cost] = field(default_factory=dict)
    answers: dict[CapturedQuery, Timeline] = field(default_factory=dict)
    handles: tuple[str, ...] = ()
    """Names of the handles. A handle is named after the lookup that returned it."""
    missing: tuple[str, ...] = ()
    """Functions that the host's NVML library lacked."""
    unrecorded: tuple[str, ...] = ()
    """Functions that were used but have no signature in signatures.py, so that their calls were not recorded."""
    findings: tuple[tuple[str, str, str], ...] = ()
    """Observations about the driver, each as the texts (question, bus id of the GPU, answer)."""

    def timeline(self, function: str, *inputs: Any) -> Timeline | None:
        return self.answers.get(CapturedQuery(function, inputs))

    def questions(self, function: str) -> Iterator[tuple[tuple[Any, ...], Timeline]]:
        """Return an iterator over (inputs, timeline) of each recorded query of a function."""
        return ((query.inputs, timeline) for query, timeline in self.answers.items() if query.function == function)


_LISTS = ("handles", "missing", "unrecorded", "findings")


def write(capture: Capture, path: Path) -> int:
    """Write a recording to a compressed file, atomically. Return the file's size in bytes. Raise OSError on failure."""
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in _lines(capture))
    packed = gzip.compress(text.encode(), mtime=0)
    new = path.with_name(f".{path.name}.new")
    try:
        new.unlink(missing_ok=True)
        with new.open("xb") as file:  # mode x creates the file, and follows no symbolic link
            file.write(packed)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    return len(packed)


def _lines(capture: Capture) -> Iterator[dict[str, Any]]:
    yield {FORMAT: VERSION, **asdict(capture.header)}
    count = 2
    for name, takes in sorted(capture.signatures.items()):
        cost = capture.costs.get(name)
        yield {"function": name, "takes": takes} | ({"cost": asdict(cost)} if cost else {})
        count += 1
    yield {name: getattr(capture, name) for name in _LISTS}
    for (function, inputs), timeline in capture.answers.items():
        answers = [[time, *answer] for time, answer in zip(timeline.times, timeline.answers, strict=True)]
        yield {"asked": function, "given": inputs, "answers": answers}
        count += 1
    yield {"lines": count}


def read(path: Path) -> Capture:
    """Read a recording. If the file cannot be used, raise SimulationError with the file, the problem and the remedy."""
    try:
        lines = list(_unpack(path))
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise SimulationError(f"recording {path}: {_wrong(error)}") from error
    try:
        version = lines[0][FORMAT]
    except (IndexError, TypeError, KeyError) as error:
        raise SimulationError(f"recording {path}: {_FOREIGN}") from error
    if version != VERSION:
        raise SimulationError(
            f"recording {path}: of format {version}, and gpumon here reads format {VERSION}: use a later gpumon"
        )
    if lines[-1] != {"lines": len(lines) - 1}:
        raise SimulationError(f"recording {path}: {_TRUNCATED}")
    try:
        return _capture(lines)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise SimulationError(f"recording {path}: {DAMAGED} ({error!r})") from error


class _TooLargeError(ValueError):
    """Raised for a recording that would fill the memory."""


_FOREIGN = "not a recording of gpumon: name a file that `gpumon-sim record` wrote"
DAMAGED = "damaged: copy it again, or record again"
_TRUNCATED = "it ends too early: copy it again, or record again"


def _wrong(error: Exception) -> str:
    if isinstance(error, _TooLargeError):
        return f"more than {LARGEST >> 20} MiB or {MAX_ITEMS:,} values: record for a shorter time"
    if isinstance(error, (EOFError, zlib.error)):
        return _TRUNCATED
    if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
        return f"cannot be read ({error.strerror or error}): name a file that `gpumon-sim record` wrote"
    return _FOREIGN


def _unpack(path: Path) -> Iterator[Any]:
    size = items = 0
    with gzip.open(path) as file:
        while line := file.readline(LARGEST + 1 - size):  # a small file may hold one line of gigabytes
            size += len(line)
            items += line.count(b",") + line.count(b"[")
            if size > LARGEST or items > MAX_ITEMS:
                raise _TooLargeError
            yield json.loads(line)


def _capture(lines: list[dict[str, Any]]) -> Capture:
    first = {name: value for name, value in lines[0].items() if name != FORMAT}
    capture = Capture(header=Header(**first | {"remarks": tuple(first["remarks"])}))
    for line in lines[1:-1]:
        if "asked" in line:
            capture.answers[CapturedQuery(line["asked"], _tuple(line["given"]))] = _timeline(line["answers"])
        elif "function" in line:
            capture.signatures[line["function"]] = tuple(line["takes"])
            if "cost" in line:
                capture.costs[line["function"]] = Cost(**line["cost"])
        else:
            for name in _LISTS:
                setattr(capture, name, _tuple(line[name]))
    return capture


def _timeline(answers: Iterable[Any]) -> Timeline:
    timeline = Timeline()
    for time, *answer in answers:
        timeline.times.append(float(time))
        timeline.answers.append(_tuple(answer))
    if not timeline.times or timeline.times != sorted(timeline.times):
        raise ValueError("answers out of order")
    return timeline


def _tuple(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the values of a JSON list as a tuple, with the lists in it converted to tuples too, at all levels."""
    return tuple(_tuple(value) if isinstance(value, list) else value for value in values)


def by_bus_id(capture: Capture, query: str, time: float) -> Mapping[str, str]:
    """Return the answer to the query BUS or UUIDS, by bus id, `time` seconds after the recording began.

    Return an empty mapping if the recording has no answer.
    """
    timeline = capture.timeline(query)
    return timeline.at(time)[1] if timeline else {}
